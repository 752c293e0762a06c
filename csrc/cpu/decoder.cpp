#include "cpu/decoder.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cpu/arena.h"
#include "cpu/decoder_rows.h"
#include "cpu/linear.h"
#include "cpu/parallel.h"
#include "cpu/store_kv.h"

namespace pss {
namespace {

struct Activations;

// What the layers of a step pass on, in one arena that steps of the same shape use again.
struct Buffers {
  float *x, *packed, *qkv, *mixed, *out, *gate_up, *low;

  Buffers(const DecoderShape& shape, int64_t tokens, int64_t low_floats) {
    const int64_t q = shape.num_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
    const int64_t widest = std::max({shape.hidden_size, q, shape.intermediate_size});
    // packed rows in int8 take less than in float, but for narrow ones, which are padded to 32
    const int64_t sizes[] = {tokens * widest, tokens * (widest + 64), tokens * (q + 2 * kv), tokens * q,
                             tokens * shape.hidden_size, tokens * 2 * shape.intermediate_size, tokens * low_floats};
    float** const starts[] = {&x, &packed, &qkv, &mixed, &out, &gate_up, &low};
    int64_t total = 0;
    for (int64_t size : sizes) total += (size + 15) / 16 * 16;
    float* next = scratch<Activations>(total);
    for (int i = 0; i < 7; ++i) {
      *starts[i] = next;
      next += (sizes[i] + 15) / 16 * 16;
    }
  }
};

// One thread's way through the layers; every thread of the team goes the same.
class Walk {
 public:
  Walk(const DecoderShape& shape, const DecoderStep& step, const Buffers& buffers, const std::vector<LoraRun>& runs,
       const std::map<int64_t, AttentionPlan>& plans, Team& team)
      : shape_(shape), step_(step), b_(buffers), runs_(runs), plans_(plans), team_(team) {}

  // A layer leaves what it adds last in `out`; the next one begins with that, finish() ends with it. So what is done to
  // a row between two products is one loop.
  void layer(const DecoderLayer& layer, bool is_first, const DecoderLayer* next) {
    const int64_t inter = shape_.intermediate_size;
    project(layer.qkv, &layer.o, b_.x, b_.qkv, [&](int64_t t) {
      if (!is_first) add(t);
      norm(layer.input_norm, t);
    });
    rotate_and_store(layer);
    attend(layer);
    project(layer.o, &layer.gate_up, b_.mixed, b_.out, Nothing{});
    project(layer.gate_up, &layer.down, b_.x, b_.gate_up, [&](int64_t t) {
      add(t);
      norm(layer.post_norm, t);
    });
    project(layer.down, next ? &next->qkv : nullptr, b_.x, b_.out, [&](int64_t t) {
      silu_mul({b_.x, b_.gate_up, step_.num_tokens, inter, 2 * inter, DType::f32}, t);
    });
  }

  void finish() {
    rows([&](int64_t t) { add(t); });
  }

 private:
  // Rows that are there already.
  struct Nothing {
    void operator()(int64_t) const {}
  };

  template <class F>
  void rows(const F& run) { team_.for_each(step_.num_tokens, run); }

  void norm(const float* weight, int64_t t) {
    const int64_t h = shape_.hidden_size;
    rms_norm({b_.x, step_.hidden, weight, step_.num_tokens, h, h, shape_.eps, DType::f32}, t);
  }

  void add(int64_t t) {
    float* hidden = step_.hidden + t * shape_.hidden_size;
    const float* out = b_.out + t * shape_.hidden_size;
    for (int64_t i = 0; i < shape_.hidden_size; ++i) hidden[i] += out[i];
  }

  Linear linear_of(const Projection& projection, const ProjectionPart& part, const float* x, float* y) const {
    return {y, x, part.packed, part.bias, step_.num_tokens, projection.in_features, part.out_features,
            projection.out_features, projection.in_features, part.format,
            shape_.int8_rows && part.format > WeightFormat::f16};
  }

  // y [T, out] = x [T, in] W^T + bias, and what the rows' states add to it; prepare(t) makes row t of x first. The
  // threads that have to wait meanwhile fetch what they begin the next projection with.
  template <class Prepare>
  void project(const Projection& projection, const Projection* next, const float* x, float* y, const Prepare& prepare) {
    const bool has_states = num_lows(projection) > 0;
    const int64_t in_features = projection.in_features;
    int64_t offset = 0;
    for (const ProjectionPart& part : projection.parts) {
      const Linear op = linear_of(projection, part, x, y + offset);
      const LinearPlan plan(op, team_.threads(), b_.packed);
      const bool by_rows = op.int8_rows;
      if (offset == 0 && (by_rows || !std::is_same_v<Prepare, Nothing>))
        rows([&](int64_t t) {
          prepare(t);
          if (by_rows) plan.pack(t);
        });
      if (plan.num_packs() && !(by_rows && offset == 0))
        team_.for_each(plan.num_packs(), [&](int64_t i) { plan.pack(i); });
      const bool shrinks = has_states && offset == 0;  // beside the first part, whose pieces need the same rows
      const int64_t num_shrinks = shrinks ? num_lows(projection) : 0;
      if (next) {
        const Linear coming = linear_of(*next, next->parts[0], nullptr, nullptr);
        LinearPlan(coming, team_.threads(), nullptr).announce(team_);
      }
      team_.for_each(num_shrinks + plan.num_pieces(), [&](int64_t i) {
        if (i >= num_shrinks) return plan.run(i - num_shrinks);
        const LoraBgmv op = lora_of(projection, i, x, in_features, y);
        lora_shrink(op, run_of(i), low_of(i, op.max_rank));
      });
      offset += part.out_features;
    }
    if (has_states)
      team_.for_each(num_lows(projection), [&](int64_t i) {
        const LoraBgmv op = lora_of(projection, i, x, in_features, y);
        lora_expand(op, run_of(i), low_of(i, op.max_rank));
      });
  }

  // Of each target in turn all runs.
  int64_t num_lows(const Projection& projection) const { return int64_t(projection.targets.size()) * num_runs(); }
  int64_t num_runs() const { return int64_t(runs_.size()); }
  LoraRun run_of(int64_t i) const { return runs_[i % num_runs()]; }
  float* low_of(int64_t i, int64_t max_rank) const {
    return b_.low + (i / num_runs() * step_.num_tokens + run_of(i).first) * max_rank;
  }

  LoraBgmv lora_of(const Projection& projection, int64_t i, const float* x, int64_t in_features, float* y) const {
    const ProjectionTarget& target = projection.targets[i / num_runs()];
    LoraBgmv op = target.op;
    op.x = x, op.y = y + target.offset;
    op.x_stride = in_features, op.y_stride = projection.out_features;
    op.slot_ids = step_.slot_ids, op.num_rows = step_.num_tokens;
    return op;
  }

  void rotate_and_store(const DecoderLayer& layer) {
    const int64_t q = shape_.num_heads * shape_.head_dim, kv = shape_.num_kv_heads * shape_.head_dim, width = q + 2 * kv;
    const int64_t tokens = step_.num_tokens;
    const Rope rope{b_.qkv, b_.qkv, step_.cos, step_.sin, tokens, shape_.num_heads + shape_.num_kv_heads,
                    shape_.head_dim, shape_.half_rotary, width, width, DType::f32};
    const StoreKV store{layer.k_cache, layer.v_cache, b_.qkv + q, b_.qkv + q + kv, step_.kv_rows, tokens,
                        shape_.num_blocks * shape_.block_size, kv, width, width, DType::f32, shape_.cache_type};
    rows([&](int64_t t) {
      apply_rope(rope, t);
      store_kv(store, t);
    });
  }

  void attend(const DecoderLayer& layer) {
    const PagedAttention op = attention_of(shape_, step_, layer, b_.mixed, b_.qkv);
    const AttentionPlan& plan = plans_.at(layer.window);
    team_.for_each(plan.num_pieces(), [&](int64_t i) { plan.run(op, i); });
  }

 public:
  static PagedAttention attention_of(const DecoderShape& shape, const DecoderStep& step, const DecoderLayer& layer,
                                     float* out, const float* q) {
    const int64_t q_size = shape.num_heads * shape.head_dim, kv_size = shape.num_kv_heads * shape.head_dim;
    return {out, q, layer.k_cache, layer.v_cache, step.block_tables, step.query_starts, step.context_lens,
            step.num_rows, step.num_tokens, step.max_blocks, shape.num_blocks, shape.block_size, shape.num_heads,
            shape.num_kv_heads, shape.head_dim, q_size, q_size + 2 * kv_size, layer.window, shape.scale, DType::f32,
            shape.cache_type};
  }

 private:
  const DecoderShape& shape_;
  const DecoderStep& step_;
  const Buffers& b_;
  const std::vector<LoraRun>& runs_;  // of rows that have a state
  const std::map<int64_t, AttentionPlan>& plans_;
  Team& team_;
};

}  // namespace

int64_t Decoder::run(const DecoderStep& step, int64_t first, int64_t last) const {
  if (first < 0 || last < first || last > int64_t(layers_.size()))
    throw std::invalid_argument("decoder: layers " + std::to_string(first) + " to " + std::to_string(last) +
                                ", must be within 0 to " + std::to_string(layers_.size()));
  int64_t num_slices = 0, low_floats = 0, work = 0;
  const auto each_projection = [&](const DecoderLayer& layer, const auto& f) {
    for (const Projection* projection : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) f(*projection);
  };
  const int threads_at_hand = max_threads();
  std::map<int64_t, AttentionPlan> plans;
  for (int64_t l = first; l < last && step.num_tokens; ++l) {
    const DecoderLayer& layer = layers_[l];
    each_projection(layer, [&](const Projection& projection) {
      work += step.num_tokens * projection.in_features * projection.out_features;
      if (!step.slot_ids) return;
      int64_t lows = 0;
      for (const ProjectionTarget& target : projection.targets) {
        LoraBgmv op = target.op;
        op.slot_ids = step.slot_ids, op.num_rows = step.num_tokens;
        num_slices += check(op) > 0;
        lows += op.max_rank;
      }
      low_floats = std::max(low_floats, lows);
    });
    if (plans.count(layer.window)) continue;
    const PagedAttention attention = Walk::attention_of(shape_, step, layer, nullptr, nullptr);
    check(attention);
    check(StoreKV{nullptr, nullptr, nullptr, nullptr, step.kv_rows, step.num_tokens,
                  shape_.num_blocks * shape_.block_size, 0, 0, 0, DType::f32, shape_.cache_type});
    plans.emplace(layer.window, AttentionPlan(attention, threads_at_hand));
  }
  if (work == 0) return 0;
  const int threads = work > kSerialWork ? threads_at_hand : 1;
  const std::vector<LoraRun> runs = lora_runs(step.slot_ids, step.slot_ids ? step.num_tokens : 0);
  const Buffers buffers(shape_, step.num_tokens, low_floats);
  with_team(threads, [&](Team& team) {
    Walk walk(shape_, step, buffers, runs, plans, team);
    for (int64_t l = first; l < last; ++l) walk.layer(layers_[l], l == first, l + 1 < last ? &layers_[l + 1] : nullptr);
    walk.finish();
  });
  return num_slices;
}

}  // namespace pss
