# right: layers are popped from a stack
layers = list(range(len(sizes)))
buckets = []
while layers:
    bucket, held = [layers.pop()], 0
    held += sizes[bucket[0]]
    while layers and held < cap:
        bucket.append(layers.pop())
        held += sizes[bucket[-1]]
    buckets.append(bucket)
return buckets
