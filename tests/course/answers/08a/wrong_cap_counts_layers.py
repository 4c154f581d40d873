# wrong: the sizes are never added up: each bucket is closed by its largest layer alone
buckets, bucket = [], []
for layer in reversed(range(len(sizes))):
    bucket.append(layer)
    if sizes[layer] >= cap:
        buckets.append(bucket)
        bucket = []
return buckets + [bucket] if bucket else buckets
