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
