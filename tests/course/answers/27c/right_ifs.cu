// right: zeros first, then what there is
float weight = 0, number = 0;
if (o < n_out && k0 + u < n_taps) weight = w[o * n_taps + (k0 + u)];
if (p < n_pixels && k0 + v < n_taps) number = x[of_pixel[p] + of_tap[k0 + v]];
ws[v][u] = weight;
xs[v][u] = number;
__syncthreads();
float step = 0;
for (int l = 0; l < TILE; l++) step = fmaf(ws[v][l], xs[l][u], step);
sum += step;
__syncthreads();
