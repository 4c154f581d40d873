# wrong: in the order of forward: the first bucket is full when backward is over
buckets, bucket = [], []
for layer in range(len(sizes)):
    bucket.append(layer)
    if sum(sizes[i] for i in bucket) >= cap:
        buckets.append(bucket)
        bucket = []
return buckets + [bucket] if bucket else buckets
