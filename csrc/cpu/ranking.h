// The best passages seen so far: a heap with the worst on top. What it holds does not depend on the order of arrival.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

namespace pss {

struct Found {
  float score;
  int32_t passage;
};

struct Better {
  const int32_t* ranks;
  bool operator()(const Found& a, const Found& b) const {
    return a.score > b.score || (a.score == b.score && ranks[a.passage] < ranks[b.passage]);
  }
};

class Ranking {
 public:
  Ranking(Found* memory, int64_t depth, const int32_t* ranks, const uint8_t* mask)
      : found_(memory), depth_(depth), better_{ranks}, mask_(mask) {}

  // A score below this cannot enter.
  float floor() const {
    return size_ < depth_ ? -std::numeric_limits<float>::infinity() : found_[0].score;
  }

  void offer(float score, int64_t passage) {
    if (mask_ && !mask_[passage]) return;
    const Found item{score, int32_t(passage)};
    if (size_ < depth_) {
      found_[size_++] = item;
      std::push_heap(found_, found_ + size_, better_);
    } else if (better_(item, found_[0])) {
      std::pop_heap(found_, found_ + size_, better_);
      found_[size_ - 1] = item;
      std::push_heap(found_, found_ + size_, better_);
    }
  }

  const Found* begin() const { return found_; }
  const Found* end() const { return found_ + size_; }

 private:
  Found* found_;
  int64_t depth_, size_ = 0;
  Better better_;
  const uint8_t* mask_;
};

}  // namespace pss
