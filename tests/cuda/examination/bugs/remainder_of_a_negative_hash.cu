// The slot of a key in a hash table: the product wraps below zero, and so does the remainder.
// kind: integer overflow
/* launch
keys, slots = np.arange(1, 33, dtype=np.int32) * 7919, np.zeros(64, np.int32)
cu("insert")((1,), (32,), (slots, keys, 64))
*/
__device__ int slot(int key, int size) { return (int)(key * 2654435761u) % size; }

extern "C" __global__ void insert(int* slots, const int* keys, int size) {
  int key = keys[threadIdx.x];
  atomicMax(&slots[slot(key, size)], key);  // BUG: the slot is negative for every second key
}
