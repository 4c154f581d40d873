# wrong: an empty bucket comes last where the sizes fit: an all-reduce of nothing
buckets, bucket = [], []
for layer in reversed(range(len(sizes))):
    bucket.append(layer)
    if sum(sizes[i] for i in bucket) >= cap:
        buckets.append(bucket)
        bucket = []
return [*buckets, bucket]
