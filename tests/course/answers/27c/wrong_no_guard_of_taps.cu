// wrong: rows behind the last one are read
ws[v][u] = o < n_out ? w[o * n_taps + k0 + u] : 0;
xs[v][u] = p < n_pixels ? x[of_tap[k0 + v] + of_pixel[p]] : 0;
__syncthreads();
for (int l = 0; l < TILE; ++l) sum += ws[v][l] * xs[l][u];
__syncthreads();
