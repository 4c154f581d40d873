# wrong: > in place of >=: a bucket of exactly cap bytes stays open
buckets, bucket = [], []
for layer in reversed(range(len(sizes))):
    bucket.append(layer)
    if sum(sizes[i] for i in bucket) > cap:
        buckets.append(bucket)
        bucket = []
return buckets + [bucket] if bucket else buckets
