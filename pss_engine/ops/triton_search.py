"""``retrieve_topk`` from the candidates of the Triton kernels."""

from pss_engine.kernels.retrieve_topk import dense_candidates, sparse_candidates
from pss_engine.ops.gpu_search import by_candidates

retrieve_topk = by_candidates(dense_candidates, sparse_candidates)
