# wrong: what comes later is dropped
gradient.setdefault(producer, gx)
