#include "cpu/parallel.h"
#include "tests/native/harness.h"

using namespace pss;
using namespace pss::test;

namespace {

// How often each piece was run, by loops one after another.
void expect_each_once(const char* what, int64_t pieces, int64_t loops,
                      const std::function<void(const std::function<void(int64_t)>&)>& run_all) {
  std::vector<std::atomic<int>> runs(pieces);
  run_all([&](int64_t piece) { ++runs[piece]; });
  for (int64_t i = 0; i < pieces; ++i) expect_close(label(what, {pieces, i}), runs[i], double(loops), 0);
}

}  // namespace

PSS_TEST(every_piece_is_run_once_by_any_number_of_threads) {
  for (const int threads : {1, 2, 3, 7})
    for (const int64_t pieces : {0, 1, 5, 100})
      expect_each_once("for_each_piece", pieces, 1, [&](const auto& run) { for_each_piece(pieces, threads, run); });
}

PSS_TEST(a_team_goes_through_its_loops_together) {
  const std::vector<char> weights(100'000);
  for (const int threads : {1, 2, 3})
    expect_each_once("Team", 17, 50, [&](const auto& run) {
      with_team(threads, [&](Team& team) {
        for (int loop = 0; loop < 50; ++loop) {
          team.expect(weights.data(), 1000 + loop, 60);
          team.for_each(17, run);
        }
      });
    });
}

// Where OpenMP gives one thread instead of several, that one does it all.
PSS_TEST(a_team_inside_a_parallel_region_does_all_its_pieces) {
  expect_each_once("nested", 20, 2, [&](const auto& run) {
    with_team(2, [&](Team& outer) { outer.for_each(2, [&](int64_t) { for_each_piece(20, 2, run); }); });
  });
}
