# right: times 1 / scale, exact for powers of two; the check by the sum's finiteness in float64
inverse = np.float32(1.0 / scale)
total, parts = 0.0, []
for g in grads:
    part = g.astype(np.float32) * inverse
    total += float(np.sum(np.square(part, dtype=np.float64)))
    parts.append(part)
if not math.isfinite(total):
    return True
norm = total**0.5
clip = max_norm / norm if norm > max_norm else 1.0
for i, part in enumerate(parts):
    np.subtract(masters[i], np.float32(lr) * (np.float32(clip) * part), out=masters[i])
    weights[i][...] = masters[i].astype(np.float16)
return False
