// The functions of tensor_core.cuh on a CPU. Each lane computes its elements, and gets the
// fragments that it needs from other lanes by shuffles. tensor_core.cuh shows the layout of the
// fragments. If a lane is missing, the fibre engine reports it, as in any shuffle.
// Test: tests/cuda/host/test_tensor_core.py
#pragma once

struct MinidlFragment { unsigned int x[4]; };

MINIDL_INLINE float minidl_half_of(unsigned int pair, int which) {
  return minidl_half_to_float((unsigned short)(pair >> 16 * which));
}

// Lane 4 g + t computes columns 2t and 2t + 1 of rows g and g + 8 of `c`. For this it needs rows g
// and g + 8 of `a`, which are in lanes 4 g to 4 g + 3. It also needs columns 2t and 2t + 1 of `b`,
// which are in lanes 8 t to 8 t + 7.
MINIDL_INLINE void mma(float* c, const unsigned int* a, const unsigned int* b, MINIDL_HERE) {
  const int lane = minidl_lane(), g = lane / 4, t = lane % 4;
  MinidlFragment mine_a = {{a[0], a[1], a[2], a[3]}}, mine_b = {{b[0], b[1], 0, 0}};
  for (int s = 0; s < 4; ++s) {
    MinidlFragment as = __shfl_sync(0xffffffffu, mine_a, 4 * g + s, 32, file, line);
    for (int column = 0; column < 2; ++column) {
      const int source = 4 * (2 * t + column) + s;
      MinidlFragment bs = __shfl_sync(0xffffffffu, mine_b, source, 32, file, line);
      for (int row = 0; row < 2; ++row)
        for (int k = 0; k < 2; ++k)
          for (int which = 0; which < 2; ++which)
            c[2 * row + column] += minidl_half_of(as.x[row + 2 * k], which)
                * minidl_half_of(bs.x[k], which);
    }
  }
}

// Lane l reads two neighbours of row l / 4 of each square. Lane 8 * square + l / 4 has the address
// of this row.
MINIDL_INLINE void load_squares(unsigned int* out, const __half* row, MINIDL_HERE) {
  const int lane = minidl_lane();
  minidl_matrix_row(row, file, line);
  for (int square = 0; square < 4; ++square) {
    const __half* p = __shfl_sync(0xffffffffu, row, 8 * square + lane / 4, 32, file, line);
    p += lane % 4 * 2;
    out[square] = p[0].bits | (unsigned int)p[1].bits << 16;
  }
}

// As load_squares, but transposes the squares: lane l reads column l / 4 of rows 2 (l % 4) and 2 (l
// % 4) + 1.
MINIDL_INLINE void load_squares_transposed(unsigned int* out, const __half* row, MINIDL_HERE) {
  const int lane = minidl_lane();
  minidl_matrix_row(row, file, line);
  for (int square = 0; square < 4; ++square) {
    const int source = 8 * square + lane % 4 * 2;
    const __half* p = __shfl_sync(0xffffffffu, row, source, 32, file, line);
    const __half* q = __shfl_sync(0xffffffffu, row, source + 1, 32, file, line);
    out[square] = p[lane / 4].bits | (unsigned int)q[lane / 4].bits << 16;
  }
}
