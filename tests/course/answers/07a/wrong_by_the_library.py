# wrong: the library's own ring does the work: that is not the exercise
from minidl.comm import ring

ring.reduce_scatter(t, x)
