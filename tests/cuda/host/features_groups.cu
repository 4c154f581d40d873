// Cooperative groups, for test_features.py.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

__device__ int sum_of(cg::thread_group g, int* scratch, int v) {
  for (int d = g.size() / 2; d > 0; d /= 2) {
    scratch[g.thread_rank()] = v;
    g.sync();
    if (g.thread_rank() < d) v += scratch[g.thread_rank() + d];
    g.sync();
  }
  return v;
}
__global__ void thread_groups(int* y, const int* x) {
  __shared__ int scratch[128];
  cg::thread_block block = cg::this_thread_block();
  const int all = sum_of(block, scratch, x[threadIdx.x]);
  cg::thread_group tile = cg::tiled_partition(block, 16);
  const int part = sum_of(tile, scratch + threadIdx.x / 16 * 16, x[threadIdx.x]);
  cg::thread_block_tile<8> eight = cg::tiled_partition<8>(block);
  const int small = cg::reduce(eight, x[threadIdx.x], cg::plus<int>());
  if (threadIdx.x == 0) y[0] = all;
  if (tile.thread_rank() == 0) y[1 + threadIdx.x / 16] = part;
  if (eight.thread_rank() == 7) y[64 + eight.meta_group_rank()] = small;
}
__global__ void aggregated(int* count, int* y, const int* x) {
  if (x[threadIdx.x] <= 0) return;
  cg::coalesced_group active = cg::coalesced_threads();
  int place;
  if (active.thread_rank() == 0) place = atomicAdd(count, active.size());
  place = active.shfl(place, 0) + active.thread_rank();
  y[place] = x[threadIdx.x];
}
template <unsigned N> __device__ float sum_of_tile(cg::thread_block_tile<N>& tile, float v) {
  return cg::reduce(tile, v, cg::plus<float>());
}
// Tiles of more than a warp, next to each other and inside of each other.
template <unsigned N> __global__ void large_tiles(float* y, int* z, const float* x) {
  __shared__ cg::block_tile_memory<256> memory;
  __shared__ float row[256];
  cg::thread_block block = cg::this_thread_block(memory);
  auto tile = cg::tiled_partition<N>(block);
  auto half = cg::tiled_partition<N / 2>(tile);
  const int t = block.thread_rank(), n = block.size();
  const float v = x[blockIdx.x * n + t];
  row[t] = v;
  tile.sync();
  const float mirrored = row[t - tile.thread_rank() + N - 1 - tile.thread_rank()];
  const float sum = sum_of_tile(tile, v), part = cg::reduce(half, v, cg::greater<float>());
  float* out = y + blockIdx.x * 4 * n;
  out[t] = mirrored;
  out[n + t] = sum;
  out[2 * n + t] = part;
  out[3 * n + t] = tile.shfl(v, 37);
  z[blockIdx.x * n + t] = 1000 * tile.meta_group_rank() + 100 * half.meta_group_rank()
                          + 10 * tile.any(v > 2) + tile.all(v > -2);
}
