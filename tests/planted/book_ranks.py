"""Planted bugs in the pages of minidl/plain about many ranks: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "the oracle adds from the last rank on",
        "minidl/plain/naive.py", "all_reduce",
        "arrays[1:]", "arrays[:0:-1]",
        "tests/plain/test_naive.py::test_all_reduce_works_in_rank_order_and_in_place"),
    Bug(
        "the page's ranks of a node all-reduce another part than they own",
        "minidl/plain/hierarchical.py", "all_reduce",
        "[(node.rank + 1) % node.size]", "[node.rank]",
        "tests/plain/test_hierarchical.py::test_all_reduce_has_the_bits_and_the_bytes_of_the_real_one"),
    Bug(
        "the page's tree broadcasts in the order of the reduce",
        "minidl/plain/tree.py", "broadcast",
        "reversed(distances(t.size))", "distances(t.size)",
        "tests/plain/test_tree.py::test_all_reduce_has_the_bits_and_the_messages_of_the_real_one"),
    Bug(
        "the page's doubling goes forwards",
        "minidl/plain/halving_doubling.py", "double",
        "reversed(steps)", "steps",
        "tests/plain/test_halving_doubling.py::test_all_reduce_has_the_bits_of_the_real_one"),
    Bug(
        "the page's second tree of an odd number of ranks is mirrored, too",
        "minidl/plain/double_tree.py", "both_trees",
        "n % 2 == 0", "True",
        "tests/plain/test_double_tree.py::test_all_reduce_has_the_bits_and_the_bytes_of_the_real_one"
        ),
    Bug(
        "the page closes a bucket only above its cap",
        "minidl/plain/buckets.py", "mean_gradients",
        ">= cap", "> cap",
        "tests/plain/test_buckets.py"
        "::test_a_bucket_is_sent_when_it_is_full_and_before_the_next_gradient"),
    Bug(
        "the page's batch norm forgets that x moves the variance",
        "minidl/plain/sync_batchnorm.py", "batch_norm",
        "g - through_mean - through_variance", "g - through_mean",
        "tests/plain/test_sync_batchnorm.py::test_outputs_and_gradients_are_the_real_ones"),
    Bug(
        "the page's LARS leaves decay out of the divisor",
        "minidl/plain/large_batch.py", "lars",
        "(length(g) + decay * length(w))", "length(g)",
        "tests/plain/test_large_batch.py::test_lars"),
    Bug(
        "the page's DiLoCo steps without Nesterov's look ahead",
        "minidl/plain/local_sgd.py", "diloco",
        "(d + momentum * m)", "m",
        "tests/plain/test_local_sgd.py::test_the_weights_are_the_real_ones"),
    Bug(
        "the page's DGC keeps the momentum of what was sent",
        "minidl/plain/dgc.py", "step",
        "u[largest] = 0", "pass",
        "tests/plain/test_dgc.py::test_weights_and_residuals_have_the_bits_of_the_real_one"),
    Bug(
        "the page's PowerSGD owes what the others' gradients lack, too",
        "minidl/plain/powersgd.py", "mean_gradient",
        "p @ own.T", "p @ total(t, own).T / t.size",
        "tests/plain/test_powersgd.py::test_means_and_what_is_owed_are_the_real_ones"),
    Bug(
        "the page's server sums the workers' gradients",
        "minidl/plain/parameter_server.py", "serve_together",
        "(sum(gradients) / len(workers))", "sum(gradients)",
        "tests/plain/test_parameter_server.py::test_together_has_the_bits_of_the_real_one"),
    Bug(
        "the page's ZeRO sums gradients, and does not divide",
        "minidl/plain/zero.py", "scatter",
        "/ t.size", "",
        "tests/plain/test_zero.py::test_stage_1_has_the_bits_of_the_real_one"),
    Bug(
        "the page's offload sends old weights up",
        "minidl/plain/offload.py", "step",
        "weights[i][...] = link.up(masters[i].astype(np.float16))", "weights[i][...] = link.up(weights[i])",
        "tests/plain/test_offload.py::test_weights_and_masters_have_the_bits_of_the_real_one"),
]
