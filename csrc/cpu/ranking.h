// The best passages seen so far, unordered. What is kept does not depend on the order of arrival.
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
  // Room to take passages in before the worst are dropped, all at once.
  static int64_t capacity(int64_t depth) { return depth + std::max<int64_t>(depth, 48); }

  Ranking(Found* memory, int64_t depth, const int32_t* ranks, const uint8_t* mask)
      : found_(memory), depth_(depth), better_{ranks}, mask_(mask) {}

  // A score below this cannot enter.
  float floor() const { return floor_; }

  void offer(float score, int64_t passage) {
    if (mask_ && !mask_[passage]) return;
    found_[size_++] = {score, int32_t(passage)};
    if (size_ < capacity(depth_)) return;
    std::nth_element(found_, found_ + depth_ - 1, found_ + size_, better_);
    size_ = depth_;
    floor_ = found_[depth_ - 1].score;
  }

  // May be more than `depth`.
  const Found* begin() const { return found_; }
  const Found* end() const { return found_ + size_; }

 private:
  Found* found_;
  int64_t depth_, size_ = 0;
  float floor_ = -std::numeric_limits<float>::infinity();
  Better better_;
  const uint8_t* mask_;
};

}  // namespace pss
