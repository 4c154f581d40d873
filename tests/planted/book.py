"""Planted bugs in the pages of minidl/plain, one for each page: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "the page adds no gradients where paths meet",
        "minidl/plain/autograd.py", "grad",
        "g = gradient[parent] + g", "pass",
        "tests/plain/test_autograd.py::test_values_and_gradients_are_the_real_ones"),
    Bug(
        "the page's ring sends the wrong chunk first",
        "minidl/plain/ring.py", "reduce_scatter",
        "(r - step) % n", "(r + 1 - step) % n",
        "tests/plain/test_ring.py::test_all_reduce_has_the_bits_of_the_real_one"),
    Bug(
        "the page takes the mean over ranks and not over samples",
        "minidl/plain/data_parallel.py", "mean_gradients",
        "n_samples / total", "1 / t.size",
        "tests/plain/test_data_parallel.py::test_the_weights_are_the_real_ones"),
    Bug(
        "the page's pipeline sums the loss over micro-batches",
        "minidl/plain/pipeline.py", "step",
        "1 / len(micro_batches)", "1",
        "tests/plain/test_pipeline.py::test_losses_and_gradients_have_the_bits_of_the_real_one"),
    Bug(
        "the page's cross entropy is a sum and not a mean",
        "minidl/plain/training.py", "cross_entropy",
        "sum() / n", "sum()",
        "tests/plain/test_training.py::test_the_losses_and_weights_are_the_real_ones"),
    Bug(
        "the page's Adam forgets to undo the start of v from zero",
        "minidl/plain/optimizers.py", "adam_step",
        "v / (1 - b2**t)", "v",
        "tests/plain/test_optimizers.py::test_adam_is_the_real_one"),
    Bug(
        "the page's causal mask hides a token from itself",
        "minidl/plain/attention.py", "causal_mask",
        "k=1", "k=0",
        "tests/plain/test_attention.py::test_outputs_and_gradients_are_the_real_ones"),
    Bug(
        "the page's RoPE turns the two halves in different directions",
        "minidl/plain/transformer.py", "rope",
        "[-one, zero]", "[one, zero]",
        "tests/plain/test_transformer.py::test_the_turn_is_the_real_one"),
    Bug(
        "the page's online softmax does not shrink the sum of earlier blocks",
        "minidl/plain/flash.py", "forward",
        "shrink * total", "total",
        "tests/plain/test_flash.py::test_outputs_and_gradients_are_the_real_ones"),
    Bug(
        "the page's gradient of a convolution's input forgets where a patch began",
        "minidl/plain/convolution.py", "gradients",
        "gx[:, :, i:i + oh, j:j + ow]", "gx[:, :, :oh, :ow]",
        "tests/plain/test_convolution.py::test_the_gradients_are_the_real_ones"),
    Bug(
        "the page's Kahan sum loses what an addition lost",
        "minidl/plain/floats.py", "kahan",
        "wanted = number + lost", "wanted = number",
        "tests/plain/test_floats.py::test_ones_are_swamped_in_order_alone"),
    Bug(
        "the page unscales gradients by the scale after it has grown",
        "minidl/plain/amp.py", "step",
        "np.float32(scale)", "np.float32(scale * 2 if good_steps + 1 == interval else scale)",
        "tests/plain/test_amp.py::test_scales_and_masters_have_the_bits_of_the_real_ones"),
    Bug(
        "the page's segment goes back without the gradient that came",
        "minidl/plain/recompute.py", "recompute",
        "(y * Tensor(g.array)).sum()", "y.sum()",
        "tests/plain/test_recompute.py::test_gradients_have_the_bits_of_those_without"),
    Bug(
        "the page's gradients keep the results of all segments alive",
        "minidl/plain/recompute.py", "recompute",
        "[Tensor(each.array) for each in gradients]", "gradients",
        "tests/plain/test_recompute.py::test_backward_holds_the_results_of_one_segment_at_a_time"),
    Bug(
        "the page counts the output of a network as needed, and not its input",
        "minidl/plain/memory.py", "needed",
        "sizes[:-1]", "sizes[1:]",
        "tests/plain/test_memory.py::test_the_real_engine_keeps_what_is_needed"),
    Bug(
        "the page goes on at the number of batches and not of samples",
        "minidl/plain/data.py", "batches",
        "range(used, n, batch_size)", "range(used * batch_size, n, batch_size)",
        "tests/plain/test_data.py::test_both_go_on_at_the_same_place"),
    Bug(
        "the page's queue has no bound",
        "minidl/plain/prefetch.py", "prefetch",
        "queue.Queue(n)", "queue.Queue()",
        "tests/plain/test_prefetch.py::test_a_thread_loads_n_and_one_more_ahead"),
    Bug(
        "the page's packed rows let a token see the text before",
        "minidl/plain/lengths.py", "mask",
        "text[:, None] == text", "text[:, None] >= text",
        "tests/plain/test_lengths.py::test_a_packed_row_and_its_mask_are_the_real_ones"),
    Bug(
        "the page joins the largest of equally frequent pairs",
        "minidl/plain/tokens.py", "learn",
        "min(counts, key=lambda pair: (-counts[pair], pair))",
        "max(counts, key=lambda pair: (counts[pair], pair))",
        "tests/plain/test_tokens.py::test_pairs_are_the_real_ones"),
    Bug(
        "the page's top-p leaves out the token that reaches p",
        "minidl/plain/sampling.py", "probabilities",
        "before = np.cumsum(p[likeliest]) - p[likeliest]", "before = np.cumsum(p[likeliest])",
        "tests/plain/test_sampling.py::test_the_possible_tokens_are_the_real_ones"),
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
    Bug(
        "the page's language model learns to repeat its input",
        "minidl/plain/language_model.py", "loss",
        "ids[1:]", "ids[:-1]",
        "tests/plain/test_language_model.py::test_the_loss_of_a_model_that_is_known"),
    Bug(
        "the page's language model drops the result of each block",
        "minidl/plain/language_model.py", "scores",
        "x = block(x, block_weights, n_heads)", "block(x, block_weights, n_heads)",
        "tests/plain/test_language_model.py::test_the_scores_are_the_real_llamas"),
    Bug(
        "the page's O1 computes softmax in float16",
        "minidl/plain/amp.py", "loss_o1",
        "scores.astype(np.float32)", "scores",
        "tests/plain/test_amp.py::test_the_loss_of_o1_is_that_of_autocast"),
    Bug(
        "the page's prefill keeps keys as values",
        "minidl/plain/kv_cache.py", "prefill",
        "values.extend(v)", "values.extend(k)",
        "tests/plain/test_kv_cache.py::test_prefill_leaves_what_single_steps_leave"),
]
