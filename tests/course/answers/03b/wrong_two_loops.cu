// wrong: right numbers, but the row is read twice
for (int j = t; j < cols; j += blockDim.x) m = fmaxf(m, row[j]);
for (int j = t; j < cols; j += blockDim.x) sum += expf(row[j] - m);
