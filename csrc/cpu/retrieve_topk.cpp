#include "cpu/retrieve_topk.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu/packed_queries.h"
#include "cpu/parallel.h"
#include "cpu/ranking.h"
#include "cpu/retrieve_vnni.h"

#define PSS_EACH_ISA "cpu/retrieve_topk.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {

// Places of rankings that one thread sorts in about the time that a second one takes to wake.
constexpr int64_t kSerialPlaces = 1 << 10;

void check_range(const char* name, const int32_t* values, int64_t count, int64_t low, int64_t end) {
  for (int64_t i = 0; i < count; ++i)
    if (values[i] < low || values[i] >= end)
      throw std::invalid_argument("retrieve_topk: " + std::string(name) + "[" + std::to_string(i) + "] = " +
                                  std::to_string(values[i]) + ", must be " + std::to_string(low) + " to " +
                                  std::to_string(end - 1));
}

void check_spans(const SparseSearch& sparse) {
  for (int64_t q = 0; q <= sparse.num_queries; ++q) {
    const int64_t low = q == 0 ? 0 : sparse.starts[q - 1];
    const bool ends = q == sparse.num_queries && sparse.starts[q] != sparse.num_query_terms;
    if (sparse.starts[q] < low || (q == 0 && sparse.starts[q] != 0) || ends)
      throw std::invalid_argument("retrieve_topk: starts[" + std::to_string(q) + "] = " +
                                  std::to_string(sparse.starts[q]) + "; starts must rise from 0 to " +
                                  std::to_string(sparse.num_query_terms));
  }
  check_range("terms", sparse.terms, sparse.num_query_terms, 0, sparse.num_terms);
  for (int64_t i = 0; i < sparse.num_query_terms; ++i) {
    const int64_t term = sparse.terms[i], first = sparse.indptr[term], end = sparse.indptr[term + 1];
    if (first < 0 || first > end || end > sparse.num_postings)
      throw std::invalid_argument("retrieve_topk: term " + std::to_string(term) + " has the postings " +
                                  std::to_string(first) + " to " + std::to_string(end) + " of " +
                                  std::to_string(sparse.num_postings));
  }
}

// Rankings of several pieces of the corpus for each query, in one block of memory.
class Rankings {
 public:
  Rankings(const RetrieveTopk& op, int64_t first_list, int64_t lists, int64_t pieces)
      : pieces_(pieces) {
    const int64_t depth = std::min(op.depth, op.num_passages), size = Ranking::capacity(depth);
    memory_.resize(lists * pieces * size);
    rankings_.reserve(lists * pieces);
    for (int64_t i = 0; i < lists * pieces; ++i) {
      const int64_t mask = op.mask_ids[op.groups[first_list + i / pieces]];
      rankings_.emplace_back(memory_.data() + i * size, depth, op.ranks,
                             mask < 0 ? nullptr : op.masks + mask * op.num_passages);
    }
  }

  Ranking& of(int64_t list, int64_t piece) { return rankings_[list * pieces_ + piece]; }

  // Joins the pieces of each query and writes its ranking, from row `first_list` on.
  void write(const RetrieveTopk& op, int64_t first_list) {
    const int64_t lists = int64_t(rankings_.size()) / pieces_;
    for_each_row(lists, num_threads(lists, lists * op.depth, kSerialPlaces), [&](int, int64_t list) {
      std::vector<Found> all;
      for (int64_t piece = 0; piece < pieces_; ++piece)
        all.insert(all.end(), of(list, piece).begin(), of(list, piece).end());
      const int64_t held_places = std::min<int64_t>(op.depth, all.size());
      std::partial_sort(all.begin(), all.begin() + held_places, all.end(), Better{op.ranks});
      const int64_t row = (first_list + list) * op.depth;
      for (int64_t place = 0; place < op.depth; ++place) {
        const bool held = place < held_places;
        op.list_passages[row + place] = held ? all[place].passage : -1;
        op.list_scores[row + place] = held ? all[place].score : 0.0f;
      }
    });
  }

 private:
  int64_t pieces_;
  std::vector<Found> memory_;
  std::vector<Ranking> rankings_;
};

void search_dense(const RetrieveTopk& op) {
  const DenseSearch& dense = op.dense;
  if (dense.num_queries == 0) return;
#ifdef PSS_SIMDE
  const bool vnni = false;
#else
  const bool vnni = dense.is_int8 && isa() == Isa::avx512_vnni;
#endif
  const auto pack = vnni ? &vnni_pack : PSS_SELECT_ISA(dense_pack);
  const auto score = vnni ? &vnni_scores : PSS_SELECT_ISA(dense_scores);
  const PackedQueries packed = pack(dense);
  const int64_t lanes = packed.lanes;
  const int threads = num_threads(op.num_passages, dense.num_queries * op.num_passages * dense.dim);
  Rankings rankings(op, 0, dense.num_queries, threads);
  for_each_row(threads, threads, [&](int, int64_t piece) {
    std::vector<float> scores(kDenseTile * lanes), scratch(kDenseScratchRows * dense.dim);
    // Lanes beyond the queries hold what nothing reaches.
    std::vector<float> floors(lanes, std::numeric_limits<float>::infinity());
    for (int64_t q = 0; q < dense.num_queries; ++q) floors[q] = rankings.of(q, piece).floor();
    const int64_t end = op.num_passages * (piece + 1) / threads;
    for (int64_t first = op.num_passages * piece / threads; first < end; first += kDenseTile) {
      const int64_t count = std::min(kDenseTile, end - first);
      score(dense, packed, first, count, scores.data(), scratch.data());
      for (int64_t i = 0; i < count; ++i) {
        const float* row = scores.data() + i * lanes;
        for (int64_t start = 0; start < lanes; start += kLaneBlock) {
          const int64_t stop = std::min(start + kLaneBlock, lanes);
          bool any = false;
          for (int64_t q = start; q < stop; ++q) any |= row[q] >= floors[q];
          if (!any) continue;
          for (int64_t q = start; q < stop; ++q)
            if (row[q] >= floors[q] && q < dense.num_queries) {
              rankings.of(q, piece).offer(row[q], first + i);
              floors[q] = rankings.of(q, piece).floor();
            }
        }
      }
    }
  });
  rankings.write(op, 0);
}

void search_sparse(const RetrieveTopk& op) {
  const SparseSearch& sparse = op.sparse;
  if (sparse.num_queries == 0) return;
  int64_t postings = 0;
  for (int64_t i = 0; i < sparse.starts[sparse.num_queries]; ++i)
    postings += sparse.indptr[sparse.terms[i] + 1] - sparse.indptr[sparse.terms[i]];
  const auto search = PSS_SELECT_ISA(sparse_piece);
  const int64_t work = 4 * (postings + sparse.num_queries * kSparseTile);
  const int threads = num_threads(std::max<int64_t>(2, sparse.num_queries), work);
  const int64_t pieces = sparse.num_queries >= 4 * threads ? 1 : threads;
  Rankings rankings(op, op.dense.num_queries, sparse.num_queries, pieces);
  for_each_piece(sparse.num_queries * pieces, threads, [&](int64_t i) {
    const int64_t query = i / pieces, piece = i % pieces;
    search(sparse, query, op.num_passages * piece / pieces, op.num_passages * (piece + 1) / pieces,
           rankings.of(query, piece));
  });
  rankings.write(op, op.dense.num_queries);
}

struct Fused {
  int64_t share;
  int32_t passage;
};

void fuse(const RetrieveTopk& op, const std::vector<int64_t>& lists, int64_t group) {
  std::vector<Fused> all;
  for (int64_t list : lists)
    for (int64_t i = list * op.depth; i < (list + 1) * op.depth && op.list_passages[i] >= 0; ++i)
      if (op.shares[i] > 0) all.push_back({op.shares[i], op.list_passages[i]});
  std::sort(all.begin(), all.end(), [](const Fused& a, const Fused& b) { return a.passage < b.passage; });
  size_t kept = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (kept && all[kept - 1].passage == all[i].passage)
      all[kept - 1].share += all[i].share;
    else
      all[kept++] = all[i];
  }
  all.resize(kept);
  std::sort(all.begin(), all.end(), [&](const Fused& a, const Fused& b) {
    return a.share > b.share || (a.share == b.share && op.ranks[a.passage] < op.ranks[b.passage]);
  });
  for (int64_t place = 0; place < op.k; ++place) {
    const bool held = place < int64_t(all.size());
    op.passages[group * op.k + place] = held ? all[place].passage : -1;
    op.fused[group * op.k + place] = held ? all[place].share : 0;
  }
}

}  // namespace

void retrieve_topk(const RetrieveTopk& op) {
  const int64_t lists = op.dense.num_queries + op.sparse.num_queries;
  check_range("groups", op.groups, lists, 0, op.num_groups);
  check_range("mask_ids", op.mask_ids, op.num_groups, -1, op.num_masks);
  if (op.sparse.num_queries) check_spans(op.sparse);
  search_dense(op);
  search_sparse(op);
  std::vector<std::vector<int64_t>> lists_of(op.num_groups);
  for (int64_t list = 0; list < lists; ++list) lists_of[op.groups[list]].push_back(list);
  for_each_row(op.num_groups, num_threads(op.num_groups, lists * op.depth, kSerialPlaces),
               [&](int, int64_t group) { fuse(op, lists_of[group], group); });
}

}  // namespace pss
