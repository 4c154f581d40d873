// wrong: all threads add to s[0] without atomics
if (t == 0) s[0] = 0;
__syncthreads();
s[0] += mine;
__syncthreads();
