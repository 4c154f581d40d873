"""Planted bugs in transports, collectives, and what observes them: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "figures of a file choose, whatever they say",
        "minidl/comm/select.py", "kept",
        "if are_good(found):", "if True:",
        "tests/comm/test_select.py::test_a_file_without_good_figures_is_not_used"),
    Bug(
        "figures that another user has written are used",
        "minidl/comm/select.py", "kept",
        "path.is_file() and is_ours(path)", "path.is_file()",
        "tests/comm/test_select.py::test_figures_that_others_can_have_written_are_not_used"),
    Bug(
        "all-to-all receives from where it sends to",
        "minidl/comm/all_to_all.py", "_exchange",
        "to, source = (r + s) % n, (r - s) % n", "to = source = (r + s) % n",
        "tests/comm/test_all_to_all.py::test_block_i_came_from_rank_i"),
    Bug(
        "the mean of a strided array is lost",
        "minidl/comm/average.py", "mean",
        "not xp_of([x]).may_share_memory(total, x)", "total.dtype != x.dtype",
        "tests/comm/test_average.py::test_a_strided_array_too_is_averaged_in_place"),
    Bug(
        "the op is not in the code of a call",
        "minidl/comm/call_code.py", "_code",
        "code |= zlib.crc32(name.encode()) % 32 << 16", "pass",
        "tests/comm/test_call_code.py::test_a_call_that_would_be_wrong_in_silence_raises"),
    Bug(
        "the last chunks are the longer ones",
        "minidl/comm/chunks.py", "bounds",
        "min(i, longer)", "max(0, i - n + longer)",
        "tests/comm/test_chunks.py::test_chunks_cut_the_vector_in_order_into_near_equal_parts"),
    Bug(
        "the sign of 0 is minus",
        "minidl/comm/codec.py", "one_bit",
        "x >= 0", "x > 0",
        "tests/comm/test_codec.py::test_golden_values_of_one_bit"),
    Bug(
        "what a block is about is not compared",
        "minidl/comm/collective.py", "collective",
        'name = outermost + _subject.get("")', "name = outermost",
        "tests/comm/test_collective.py::test_what_a_block_is_about_is_compared_and_labels_stay"),
    Bug(
        "the mean's divisor is forgotten before encoding",
        "minidl/comm/compressed.py", "_reduce",
        "total /= divisor", "pass",
        "tests/comm/test_compressed.py::test_the_mean_divides_before_it_encodes"),
    Bug(
        "ranks of a node do not share its port",
        "minidl/comm/cost.py", "hierarchical_all_reduce",
        "share * part * beta", "part * beta",
        "tests/comm/test_cost.py::test_hierarchical_on_links_that_differ"),
    Bug(
        "the sum goes down a step early",
        "minidl/comm/double_tree.py", "all_reduce",
        "top - me.depth", "top - me.depth + 1",
        "tests/comm/test_every_all_reduce.py::test_the_sum_with_the_same_bits_on_all_ranks"),
    Bug(
        "tree 2 of an odd number of ranks is moved the other way",
        "minidl/comm/double_tree.py", "seat",
        "(r - 1) % n, lambda r: (r + 1)", "(r + 1) % n, lambda r: (r - 1)",
        "tests/comm/test_double_tree.py::test_golden_parents"),
    Bug(
        "an empty body is a message that nobody receives",
        "minidl/comm/framing.py", "isend_body",
        "return [t.isend(body, dst, BODY)] if body.nbytes else []",
        "return [t.isend(body, dst, BODY)]",
        "tests/comm/test_framing.py::test_headers_and_bodies_are_counted_apart"),
    Bug(
        "a rank's digits are read from the slow end",
        "minidl/comm/grid.py", "coordinates",
        "sizes.items()", "reversed(sizes.items())",
        "tests/comm/test_grid.py::test_coordinates_are_the_digits_of_the_rank"),
    Bug(
        "a power of two of ranks folds itself",
        "minidl/comm/halving_doubling.py", "core",
        "(n.bit_length() - 1)", "max(0, (n - 1).bit_length() - 1)",
        "tests/comm/test_halving_doubling.py::test_the_core_is_the_largest_power_of_two"),
    Bug(
        "the last rank of a node leads it",
        "minidl/comm/hierarchical.py", "_plan",
        "node[0]", "node[-1]",
        "tests/comm/test_hierarchical.py::test_leaders_alone_send_between_nodes"),
    Bug(
        "objects are gathered onto rank 0, whatever the root",
        "minidl/comm/objects.py", "gather",
        "t, message, root", "t, message, 0",
        "tests/comm/test_objects.py::test_the_root_gets_all_objects_in_rank_order"),
    Bug(
        "the peer is its rank in the group, not in the world",
        "minidl/comm/observe/ledger.py", "Ledger._select",
        "ranks[to]", "to",
        "tests/comm/observe/test_ledger.py"
        "::test_subgroups_count_in_the_same_ledger_by_world_rank"),
    Bug(
        "one look makes a deadlock",
        "minidl/comm/observe/lookout.py", "Lookout._look",
        "again = self._ask_all()", "again = states",
        "tests/comm/observe/test_lookout.py"
        "::test_a_deadlock_is_certain_after_two_looks_without_a_move"),
    Bug(
        "a straggler is named at every look",
        "minidl/comm/observe/lookout.py", "Lookout._look_at_paces",
        "slow.keys() - self._slow", "slow",
        "tests/comm/observe/test_stragglers.py"
        "::test_each_is_named_once_and_again_after_it_was_well"),
    Bug(
        "under plain mpiexec nobody watches",
        "minidl/comm/transport/world.py", "world",
        'os.environ.get("MINIDL_WATCH") or DEADLINE_S', 'os.environ.get("MINIDL_WATCH") or "no"',
        "tests/mpi/test_watch_mpi.py"
        "::test_under_plain_mpiexec_ranks_are_watched_unless_told_otherwise"),
    Bug(
        "strangers are heard",
        "minidl/comm/observe/door.py", "Door._is_proof",
        "if not hmac.compare_digest(shown, _signed(self._token, shown[:32])):", "if False:",
        "tests/comm/observe/test_door.py::test_whatever_else_comes_is_turned_away_and_counted"),
    Bug(
        "a proof opens twice",
        "minidl/comm/observe/door.py", "Door._is_proof",
        "number in seen or", "",
        "tests/comm/observe/test_door.py::test_a_proof_opens_once"),
    Bug(
        "a stranger who says nothing may stay",
        "minidl/comm/observe/door.py", "Door._knows",
        "or time.monotonic() >= until", "",
        "tests/comm/observe/test_door.py::test_who_is_silent_or_slow_is_turned_away_in_time"),
    Bug(
        "a thousand strangers may stand at the door",
        "minidl/comm/observe/door.py", "Door.callers",
        "len(self._strangers) > SEATS", "False",
        "tests/comm/observe/test_door.py"
        "::test_a_caller_comes_in_at_once_among_strangers_who_say_nothing"),
    Bug(
        "deep JSON ends the thread that reads it",
        "minidl/comm/observe/door.py", "parse",
        "except RecursionError", "except ZeroDivisionError",
        "tests/comm/observe/test_door.py::test_lines_end_at_the_first_that_is_not_ours"),
    Bug(
        "one token for all doors",
        "minidl/comm/observe/side_channel.py", "Channel.__init__",
        "rank: each[2] for", "rank: everybody[0][2] for",
        "tests/comm/observe/test_side_channel.py"
        "::test_a_line_comes_with_its_sender_and_can_be_answered"),
    Bug(
        "an argument left out is not its default",
        "minidl/comm/observe/signature.py", "arguments_of",
        "(name, default)", "(name)",
        "tests/comm/observe/test_watch.py::test_an_argument_left_out_is_its_default"),
    Bug(
        "a few slow steps make a straggler",
        "minidl/comm/observe/stragglers.py", "stragglers",
        "slow if paces[rank][0] >= n_steps", "slow",
        "tests/comm/observe/test_stragglers.py"
        "::test_it_must_be_slow_for_as_many_steps_as_wanted"),
    Bug(
        "a message on its way counts as none",
        "minidl/comm/observe/waits.py", "is_open",
        "(need.key, 0) >= need", "(need.key, 0) > need",
        "tests/comm/observe/test_waits.py::test_a_message_on_its_way_is_no_deadlock"),
    Bug(
        "the ring sums whatever the op",
        "minidl/comm/ring.py", "all_reduce",
        "t, flat, op", "t, flat",
        "tests/comm/test_ring.py::test_other_operations_equal_the_naive_result"),
    Bug(
        "an all-gather leaves out the own block",
        "minidl/comm/ring_blocks.py", "bytes_sent",
        "(rank + 1) % n", "rank",
        "tests/comm/test_ring_blocks.py::test_bytes_and_messages_equal_the_formula"),
    Bug(
        "a reply leaves before the calls that were made for it",
        "minidl/comm/rpc.py", "Service._run",
        "frame.wait_for_all()", "pass",
        "tests/comm/test_rpc.py::test_a_reply_leaves_after_the_calls_that_were_made_for_it"),
    Bug(
        "the root's blocks are turned the other way",
        "minidl/comm/scatter_gather.py", "scatter",
        "x, -bounds", "x, bounds",
        "tests/comm/test_scatter_gather.py"
        "::test_scatter_gives_every_rank_its_block_from_every_root"),
    Bug(
        "the chosen way sums whatever the op",
        "minidl/comm/select.py", "all_reduce",
        "(t, x, op)", "(t, x)",
        "tests/comm/test_select.py::test_it_sums_by_the_chosen_way"),
    Bug(
        "each call begins with the first half of the window",
        "minidl/comm/shared_memory.py", "_in_segments",
        "(turn + i)", "i",
        "tests/comm/test_shared_memory.py::test_calls_of_all_lengths_follow_each_other"),
    Bug(
        "ranks that all leave by sys.exit(1) abort",
        "minidl/comm/transport/abort.py", "_all_leave",
        "return here", "return False",
        "tests/mpi/test_abort.py::test_ranks_that_all_exit_end_by_themselves"),
    Bug(
        "close() waits for the first job alone",
        "minidl/comm/transport/background.py", "Background.submit",
        "self._last = job", "self._last = self._last or job",
        "tests/comm/transport/test_background.py"
        "::test_closing_waits_refuses_more_and_raises_what_nobody_saw"),
    Bug(
        "a group's last messages reach the next group of its ranks",
        "minidl/comm/transport/communicators.py", "for_group",
        "_drain(mpi, again.comm, LAST_TAG)", "pass",
        "tests/mpi/test_communicators.py"
        "::test_what_nobody_received_does_not_reach_the_next_group"),
    Bug(
        "a collective that one rank left early reaches the next group of its ranks",
        "minidl/comm/transport/communicators.py", "for_group",
        "again.collectives is not None", "False",
        "tests/mpi/test_communicators.py"
        "::test_a_collective_that_one_rank_left_early_does_not_reach_the_next_group"),
    Bug(
        "a GPU waits for all of a scattered bucket to come back, not for the own block",
        "minidl/comm/transport/device.py", "mean_block",
        "writes=[own]", "writes=[]",
        "tests/comm/test_device_arrays.py", on_stand_in=True),
    Bug(
        "all segments share one pinned buffer",
        "minidl/comm/transport/device.py", "staged_all_reduce",
        "[i % 2]", "[0]",
        "tests/comm/transport/test_device.py::test_staged_in_segments_reduces_each_of_them"),
    Bug(
        "only the sender's NIC is shared",
        "minidl/comm/transport/links.py", "Links.ports",
        "a, -1 - b", "a, dst",
        "tests/comm/transport/test_links.py::test_nodes_share_a_nic_unless_told_otherwise"),
    Bug(
        "bits are taken for bytes",
        "minidl/comm/transport/links_text.py", "_parse_link",
        "8 / rate", "1 / rate",
        "tests/comm/transport/test_links_text.py::test_a_text_and_its_network"),
    Bug(
        "ranks in step keep the left neighbours' speed to themselves",
        "minidl/comm/transport/lockstep.py", "_Way.move",
        "(start + self._alpha)[self.left]", "start + self._alpha",
        "tests/comm/transport/test_lockstep.py::test_on_any_network_whose_ports_are_a_ranks_own"),
    Bug(
        "a strided receive stays in its copy",
        "minidl/comm/transport/mpi.py", "_Receives.wait",
        "not self._into.flags.c_contiguous", "False",
        "tests/mpi/test_mpi_transport.py"
        "::test_messages_are_cut_into_parts_and_mismatches_still_seen"),
    Bug(
        "NCCL's broadcast comes from rank 0",
        "minidl/comm/transport/nccl.py", "broadcast",
        "(t, nccl, x), root", "(t, nccl, x), 0",
        "tests/comm/transport/test_nccl.py::test_broadcast_from_every_root"),
    Bug(
        "a message that nobody receives is no error",
        "minidl/comm/transport/network.py", "Group.unreceived",
        "if channel.queue:", "if channel.queue and channel.posted:",
        "tests/comm/transport/test_sim.py::test_a_message_that_nobody_receives_is_an_error"),
    Bug(
        "waiting twice counts twice",
        "minidl/comm/transport/protocol.py", "Then.wait",
        "self._requests = ()", "pass",
        "tests/comm/observe/test_ledger.py::test_every_call_is_counted_once"),
    Bug(
        "two groups of the same ranks share their messages",
        "minidl/comm/transport/sim.py", "SimTransport.subgroup",
        "_name, ranks, count", "_name, ranks",
        "tests/comm/transport/test_protocol.py::test_a_duplicate_keeps_its_messages_apart"),
    Bug(
        "a message leaves before its kernel has ended",
        "minidl/comm/transport/staging.py", "isend",
        "library_of(x).cuda.get_current_stream().synchronize()", "pass",
        "tests/comm/transport/test_device.py"
        "::test_direct_waits_for_the_kernels_that_write_a_message_or_read_its_buffer"),
    Bug(
        "every rank believes to be the first",
        "minidl/comm/transport/supervised.py", "launched_as",
        "int(os.environ[rank])", "0",
        "tests/course/test_tutorial.py::test_the_launchers_word_about_the_world"),
    Bug(
        "a straggler's work takes no longer",
        "minidl/comm/transport/throttled.py", "Throttled.compute",
        "(self.links.slowdown(self.world_rank) - 1)", "0",
        "tests/mpi/test_throttled.py::test_measured_times_are_the_models"),
    Bug(
        "ranks in other groups are not told of a death",
        "minidl/comm/transport/ulfm.py", "_revoke",
        "list(held.made.values())", "()",
        "tests/elastic/test_heal_mpi.py::test_survivors_do_the_step_again[dp-reduce-doomed0]"),
    Bug(
        "ranks that share memory sum arrays of different sizes",
        "minidl/comm/transport/window.py", "Flags.wait",
        "words[peer][place] != mine", "False",
        "tests/comm/transport/test_window.py::test_a_note_that_differs_raises"),
    Bug(
        "a view of the shared window has one element more than its array",
        "minidl/comm/transport/window.py", "Window.halves",
        "n_bytes = length * dtype.itemsize", "n_bytes = (length + 1) * dtype.itemsize",
        "tests/comm/transport/test_window.py::test_the_views_have_the_length_of_their_array"),
    Bug(
        "an all-reduce in C takes no turn, so the next one uses the same half of the window",
        "minidl/comm/transport/window.py", "Flags.all_reduce_in_c",
        "turn + 1, count", "turn, count",
        "tests/comm/transport/test_window_in_c.py"
        "::test_the_bits_are_those_of_python_on_every_rank"),
    Bug(
        "the code in C adds rank 0's array twice",
        "kernels/host/window.cpp", "minidl_window_add",
        "ranks[1].piece", "ranks[0].piece",
        "tests/comm/transport/test_window_in_c.py"
        "::test_the_bits_are_those_of_python_on_every_rank"),
    Bug(
        "the code in C adds arrays of different sizes",
        "kernels/host/window.cpp", "minidl_window_add",
        "!= call->note", "< 0",
        "tests/comm/transport/test_window_in_c.py::test_a_size_that_differs_raises_on_every_rank"),
    Bug(
        "the code in C writes to an array that may not be written",
        "kernels/host/window.cpp", "minidl_window_all_reduce",
        "(call->x->flags & kPlain) != kPlain", "false",
        "tests/comm/transport/test_window_in_c.py::test_what_c_does_not_add_is_left_to_python"),
    Bug(
        "a Watch knows nothing of a wait in C",
        "minidl/comm/observe/watch.py", "_WatchedWindow.all_reduce_in_c",
        "return False", "return self._window.all_reduce_in_c(x, op)",
        "tests/comm/transport/test_window_in_c.py::test_under_a_watch_python_does_it"),
    Bug(
        "the code in C does not wait for its peers",
        "kernels/host/window.cpp", "has_signalled",
        "return false", "return true",
        "tests/comm/transport/test_window_in_c.py::test_a_peer_that_is_late_is_waited_for"),
    Bug(
        "a wait is for an equal count, not for as large a one",
        "minidl/comm/transport/window.py", "Flags.wait",
        "[0] < count", "[0] != count",
        "tests/comm/transport/test_window.py::test_a_peer_may_be_ahead"),
    Bug(
        "the tree's all-reduce sums whatever the op",
        "minidl/comm/tree.py", "all_reduce",
        "x, 0, op", "x, 0",
        "tests/comm/test_tree.py::test_all_reduce_equals_the_naive_result"),
]
