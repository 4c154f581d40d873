// Sums by tiles of 16 threads, with the words of cooperative groups.
// kind: sound
/* launch
x, out = noise(128), np.zeros(8, np.float32)
cu("tile_sums")((2,), (64,), (out, x))
same(out, x.reshape(8, 16).sum(1), rtol=1e-5, atol=1e-5)
*/
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void tile_sums(float* out, const float* x) {
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<16> tile = cg::tiled_partition<16>(block);
  __shared__ float s[64];
  s[block.thread_rank()] = x[blockIdx.x * blockDim.x + threadIdx.x];
  block.sync();
  float v = s[63 - block.thread_rank()];  // the block backwards
  for (int d = tile.size() / 2; d > 0; d /= 2) v += tile.shfl_down(v, d);
  int which = 3 - block.thread_rank() / 16;
  if (tile.thread_rank() == 0) out[blockIdx.x * 4 + which] = v;
}
