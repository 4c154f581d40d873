# wrong: closes before a layer that would pass cap, so buckets hold less than cap
buckets, bucket = [], []
for layer in reversed(range(len(sizes))):
    if bucket and sum(sizes[i] for i in bucket) + sizes[layer] > cap:
        buckets.append(bucket)
        bucket = []
    bucket.append(layer)
return buckets + [bucket] if bucket else buckets
