/* ldmatrix and mma.m16n8k16 of 16-bit numbers: which lane holds what, as the PTX manual says. */
#include <string.h>

#include "emulator.h"
#include "warp.h"

namespace emulator {
namespace {

/* What one lane hands to mma. */
struct Fragments {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
  Value* value;
};

/* Lane l has, with g = l / 4 and i = l % 4, of a: rows g and g + 8, columns 2i, 2i + 1 and those 8 further on; of b:
 * column g, rows likewise; of c: rows g and g + 8, columns 2i and 2i + 1. */
void multiply_all(void* const (&lanes)[32]) {
  float a[16][16], b[16][8], c[16][8];
  for (int l = 0; l < 32; ++l) {
    const Fragments& own = *static_cast<const Fragments*>(lanes[l]);
    const int g = l / 4, i = l % 4;
    for (int r = 0; r < 4; ++r) {
      float* const pair = &a[g + r % 2 * 8][i * 2 + r / 2 * 8];
      pair[0] = own.value(own.a[r] & 0xffff), pair[1] = own.value(own.a[r] >> 16);
      c[g + r / 2 * 8][i * 2 + r % 2] = own.c[r];
    }
    for (int r = 0; r < 2; ++r) {
      b[i * 2 + r * 8][g] = own.value(own.b[r] & 0xffff);
      b[i * 2 + r * 8 + 1][g] = own.value(own.b[r] >> 16);
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int l = 0; l < 32; ++l)
    for (int r = 0; r < 4; ++r)
      static_cast<const Fragments*>(lanes[l])->c[r] = c[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2];
}

}  // namespace

void load_matrices(uint32_t (&registers)[4], const unsigned char* row, bool transposed) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) fail("ldmatrix is not aligned");
  access(row, 16, false);
  Warp& w = warp();
  w.given[lane()] = reinterpret_cast<uintptr_t>(row);
  w.pointer[lane()] = registers;
  together(transposed ? kMatricesTransposed : kMatrices, [&] {
    const int first = self() - lane();
    for (int l = 0; l < 32; ++l) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        uint16_t pair[2];
        for (int e = 0; e < 2; ++e) {
          const int across = l / 4, along = l % 4 * 2 + e;
          const int from_row = transposed ? along : across, column = transposed ? across : along;
          const auto* from = reinterpret_cast<const unsigned char*>(w.given[matrix * 8 + from_row]) + column * 2;
          read_by(first + l, from, 2);  // the lane that gets it reads it, and the one that names the row does
          memcpy(&pair[e], from, 2);
        }
        static_cast<uint32_t*>(w.pointer[l])[matrix] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
      }
    }
  });
}

void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Value& value) {
  Fragments own = {c, a, {b0, b1}, &value};
  Warp& w = warp();
  w.pointer[lane()] = &own;
  together(kMultiply, [&] { multiply_all(w.pointer); });
}

}  // namespace emulator
