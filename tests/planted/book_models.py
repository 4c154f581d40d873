"""Planted bugs in the pages of minidl/plain on divided models and after training: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "the page's f does not sum the terms of a gradient",
        "minidl/plain/tensor_parallel.py", "f",
        "sum_over_ranks(t, term)", "term",
        "tests/plain/test_tensor_parallel.py::test_the_parts_together_are_one_ranks_network"),
    Bug(
        "the page's ring attention does not scale the second block's result",
        "minidl/plain/ring_attention.py", "merge",
        "np.exp(lse2 - lse) * o2", "o2",
        "tests/plain/test_ring_attention.py::test_results_and_gradients_are_the_real_ones"),
    Bug(
        "the page's all-to-all sends a rank the block of another",
        "minidl/plain/ulysses.py", "all_to_all",
        "outgoing[right]", "outgoing[left]",
        "tests/plain/test_ulysses.py::test_all_to_all_is_the_real_one"),
    Bug(
        "the page's experts count a second choice before the first ones",
        "minidl/plain/experts.py", "places",
        "counts[:, :j]", "counts[:, :0]",
        "tests/plain/test_experts.py::test_results_drops_and_bytes_are_the_real_ones"),
    Bug(
        "the page renames a snapshot before its bytes are on the disk",
        "minidl/plain/elastic.py", "write",
        "os.fsync(file.fileno())", "pass",
        "tests/plain/test_elastic.py::test_a_file_is_written_in_the_real_ones_order"),
    Bug(
        "the page's groups have the ranks of another replica",
        "minidl/plain/grid.py", "group",
        "name != axis", "name == axis",
        "tests/plain/test_grid.py::test_places_and_groups_are_the_real_ones"),
    Bug(
        "the page deals the rest from the beginning of the order",
        "minidl/plain/shuffle.py", "share",
        "order[used:][rank::n_ranks]", "order[rank::n_ranks]",
        "tests/plain/test_shuffle.py::test_the_rest_is_dealt_to_other_ranks_as_the_real_one_does"),
    Bug(
        "the page extracts in the thread that transforms",
        "minidl/plain/input.py", "samples",
        "prefetch(map(extract, names), room)", "map(extract, names)",
        "tests/plain/test_input.py::test_each_stage_works_while_the_next_one_does"),
    Bug(
        "the page's ranks fill the first node before the second one",
        "minidl/plain/numa.py", "cores_of",
        "rank % len(nodes)", "rank // len(nodes)",
        "tests/plain/test_numa.py::test_every_rank_is_on_one_node_and_nodes_have_equally_many"),
    Bug(
        "a window is over before the label that comes at its end",
        "minidl/data/stream/join.py", "_Merge.until",
        "self.ends[0][0] < now", "self.ends[0][0] <= now",
        "tests/data/stream/test_join.py::test_a_label_at_the_end_of_the_window_counts"),
    Bug(
        "the page moves an offset by more than there was to read",
        "minidl/plain/stream.py", "step",
        "+= len(part)", "+= k",
        "tests/plain/test_stream.py::test_steps_and_offsets_are_the_real_ones"),
    Bug(
        "the page's window is over with the label at its end",
        "minidl/plain/late_labels.py", "over",
        "end < watermark", "end <= watermark",
        "tests/plain/test_late_labels.py::test_pairs_are_the_real_ones_in_order"),
    Bug(
        "the page's server keeps an error to itself",
        "minidl/plain/rpc.py", "call",
        "\"error\" in answer", "\"fault\" in answer",
        "tests/plain/test_rpc.py::test_results_and_errors_are_the_real_ones"),
    Bug(
        "the page's memory plan gives a result's place to the line that reads it",
        "minidl/plain/memory_plan.py", "meet",
        "first <= other_last", "first < other_last",
        "tests/plain/test_memory_plan.py::test_a_plan_never_overlaps_and_is_near_the_real_one"),
    Bug(
        "the page's product of whole numbers forgets the zero point",
        "minidl/plain/quantize.py", "linear",
        "total -= zero *", "total -= 0 *",
        "tests/plain/test_quantize.py::test_every_part_has_the_bits_of_the_real_one"),
    Bug(
        "the page keeps no value of a new token",
        "minidl/plain/kv_cache.py", "attend_next",
        "values.append(v)", "values.append(v * 0)",
        "tests/plain/test_kv_cache.py::test_a_step_is_the_real_cached_attention"),
    Bug(
        "the page counts a child's time in its parent, too",
        "minidl/plain/profile.py", "own_times",
        "-= end - begin", "-= 0",
        "tests/plain/test_profile.py::test_own_times_are_the_real_ones_and_add_up"),
    Bug(
        "the page deletes old copies before all ranks have new ones",
        "minidl/plain/buddy.py", "save",
        "ring.all_reduce(t, np.zeros(1))", "pass",
        "tests/plain/test_buddy.py::test_wherever_a_rank_dies_the_run_ends_in_the_same_bits"),
    Bug(
        "the page fuses a result that two lines read",
        "minidl/plain/compiler.py", "fuse",
        "len(readers) == 1", "len(readers) >= 1",
        "tests/plain/test_compiler.py::test_lines_chains_and_values_are_the_real_ones"),
]
