// A flood fill that does not ask where it has been: two neighbours call each other for ever.
// kind: recursion
/* launch
wall, out = np.zeros(16, np.int32), np.zeros(16, np.int32)
cu("flood")((1,), (1,), (out, wall, 4, 4))
*/
struct Grid {
  const int* wall;
  int height, width;

  __device__ int fill(int* out, int y, int x) {  // BUG
    if (y < 0 || x < 0 || y >= height || x >= width || wall[y * width + x]) return 0;  // BUG
    out[y * width + x] = 1;                                // BUG: out is never looked at
    return 1 + fill(out, y, x + 1) + fill(out, y, x - 1)   // BUG
           + fill(out, y + 1, x) + fill(out, y - 1, x);    // BUG
  }
};

extern "C" __global__ void flood(int* out, const int* wall, int height, int width) {
  Grid grid{wall, height, width};
  out[0] = grid.fill(out, 0, 0);
}
