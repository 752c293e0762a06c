#include "cpu/products.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/arena.h"
#include "cpu/parallel.h"
#include "cpu/weight_format.h"

namespace pss {
namespace {

// Rows and columns of one piece of work; panels that are packed at a time.
constexpr int64_t kProductRows = 64, kProductColumns = 192, kProductPanels = 3;

}  // namespace
}  // namespace pss

#define PSS_EACH_ISA "cpu/products.inc"
#include "cpu/each_isa.h"

namespace pss {
namespace {

struct Piece {
  int64_t product, row, last_row, panel, last_panel;
};

std::vector<Piece> pieces_of(const Product* all, int64_t count) {
  std::vector<Piece> pieces;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t blocks = (all[i].rows + kProductRows - 1) / kProductRows;
    const int64_t panels = (all[i].columns + 15) / 16, step = kProductColumns / 16;
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t p = 0; p < panels; p += step)
        pieces.push_back({i, all[i].rows * b / blocks, all[i].rows * (b + 1) / blocks, p, std::min(p + step, panels)});
  }
  return pieces;
}

}  // namespace

void products(const Product* all, int64_t count) {
  const auto block = PSS_SELECT_ISA(product_block);
  int64_t work = 0;
  for (int64_t i = 0; i < count; ++i) work += all[i].rows * all[i].depth * all[i].columns;
  const auto pieces = pieces_of(all, count);
  for_each_piece(int64_t(pieces.size()), num_threads(int64_t(pieces.size()), work), [&](int64_t i) {
    const Piece& piece = pieces[i];
    const Product& op = all[piece.product];
    float* space = scratch<Product>((piece.last_row - piece.row + kProductPanels * 16) * op.depth);
    block(op, piece.row, piece.last_row, piece.panel, piece.last_panel, space);
  });
}

}  // namespace pss
