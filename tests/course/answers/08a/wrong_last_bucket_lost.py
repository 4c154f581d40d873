# wrong: a last bucket below cap is dropped, and its layers are never averaged
buckets, bucket = [], []
for layer in reversed(range(len(sizes))):
    bucket.append(layer)
    if sum(sizes[i] for i in bucket) >= cap:
        buckets.append(bucket)
        bucket = []
return buckets
