"""Planted bugs in parallel training, snapshots, elastic runs: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "a divided model's ranks take each other's parts",
        "minidl/elastic/buddy.py", "restore",
        "views[t.rank]", "views[(t.rank + 1) % t.size]",
        "tests/elastic/test_buddy.py"
        "::test_a_divided_model_with_a_replacement_is_the_run_without_a_death"),
    Bug(
        "a run that heals waits for its snapshots",
        "minidl/elastic/heal.py", "run",
        "save(step)", "save(step), [b.wait() for b in parts.behinds]",
        "tests/elastic/test_heal.py::test_a_snapshot_is_written_behind_the_next_step"),
    Bug(
        "survivors go on while a snapshot is still written",
        "minidl/elastic/heal.py", "run",
        "if parts is not None:", "if parts is None:",
        "tests/elastic/test_heal.py::test_what_is_being_written_ends_before_the_survivors_go_on"),
    Bug(
        "local SGD is saved in the middle of a round",
        "minidl/elastic/parts.py", "Parts.may_save",
        "not self.model.rounds.since", "True",
        "tests/elastic/test_parts.py::test_local_sgd_is_saved_at_the_end_of_a_round_alone"),
    Bug(
        "the step of a snapshot is done again",
        "minidl/elastic/resume.py", "resume",
        "at = step", "at = step - 1",
        "tests/elastic/test_restart.py::test_nothing_is_done_twice_and_nothing_left_out"),
    Bug(
        "buckets are cut again after every backward",
        "minidl/parallel/data/bucket.py", "Reducer.rebuild",
        "self.rebuilt = True", "pass",
        "tests/parallel/data/test_bucket.py"
        "::test_messages_and_bytes_are_the_rings_for_the_header_and_each_bucket"),
    Bug(
        "each rank cuts buckets in its own order",
        "minidl/parallel/data/bucket.py", "Reducer.rebuild",
        "tree.broadcast(self.t, order, 0)", "pass",
        "tests/parallel/data/test_data_parallel_backward.py"
        "::test_ranks_may_come_to_their_layers_in_another_order_or_to_fewer"),
    Bug(
        "uneven shares have a plain mean",
        "minidl/parallel/data/bucket.py", "weight",
        "buffer *= buffer.dtype.type(n_samples * n / n_total)", "pass",
        "tests/parallel/data/test_data_parallel.py"
        "::test_naive_average_after_backward_equals_one_rank_on_the_whole_batch"),
    Bug(
        "shares are weighted as if a later step divided them again",
        "minidl/parallel/data/compress.py", "CompressedBucket.reduce",
        "n_total, 1", "n_total, t.size",
        "tests/parallel/data/test_compress.py"
        "::test_what_was_sent_and_what_is_owed_make_up_the_sum_of_means"),
    Bug(
        "samples of earlier steps weigh, too",
        "minidl/parallel/data/bucket.py", "Unsent.forget",
        "self.n_samples = 0", "self.n_samples = getattr(self, 'n_samples', 0)",
        "tests/parallel/data/test_accumulation.py"
        "::test_any_sequence_gives_the_gradients_of_one_rank"),
    Bug(
        "what passes without messages used is not announced",
        "minidl/parallel/data/bucket.py", "Reducer.expect",
        "used | self.unsent.params", "used",
        "tests/parallel/data/test_accumulation.py"
        "::test_any_sequence_gives_the_gradients_of_one_rank"),
    Bug(
        "what ranks owe a parameter that no rank used is sent and given to nobody",
        "minidl/parallel/data/compress.py", "CompressedBucket.gives",
        "return bool(self.views[p].any())", "return False",
        "tests/parallel/data/test_accumulation.py"
        "::test_of_compressed_gradients_nothing_is_lost_and_nothing_comes_twice"),
    Bug(
        "gradients that are filled with zeros still have their samples",
        "minidl/parallel/data/bucket.py", "Unsent.discard",
        "self.forget()", "pass",
        "tests/parallel/data/test_accumulation.py"
        "::test_any_sequence_gives_the_gradients_of_one_rank"),
    Bug(
        "arrays that disagree count as the shortest",
        "minidl/parallel/data/samples.py", "count",
        "len(lengths) != 1", "not lengths",
        "tests/parallel/data/test_samples.py::test_what_cannot_be_known_is_asked"),
    Bug(
        "a server's clock moves with its own ids alone",
        "minidl/parallel/server/tables.py", "Tables._pushed",
        "table.tick(now)", "pass",
        "tests/parallel/server/test_tables.py"
        "::test_rows_are_forgotten_at_the_same_step_on_any_number_of_servers"),
    Bug(
        "only v is masked",
        "minidl/parallel/data/dgc.py", "DGC.reduce",
        "u.reshape(-1)[where] = 0", "pass",
        "tests/parallel/data/test_dgc.py::test_every_step_is_the_papers_to_the_bit"),
    Bug(
        "the inner gradients are lost to the outer step",
        "minidl/parallel/data/diloco.py", "DiLoCo.outer_step",
        "p.grad = grad", "p.grad = None",
        "tests/parallel/data/test_diloco.py::test_the_inner_gradients_stay"),
    Bug(
        "DiLoCo has an all-reduce of its own, whatever it is given",
        "minidl/parallel/data/diloco.py", "DiLoCo",
        "all_reduce or default_all_reduce(params)", "default_all_reduce(params)",
        "tests/parallel/data/test_diloco.py"
        "::test_an_all_reduce_of_the_users_sums_and_hears_what_it_sums"),
    Bug(
        "what a block holds of a tensor is counted from the block",
        "minidl/parallel/data/flat.py", "within",
        "begin, b - begin", "low, b - low",
        "tests/parallel/data/test_flat.py::test_the_parts_of_a_buffer_hold_every_element_once"),
    Bug(
        "a rank without further batches stops while other ranks still have batches",
        "minidl/parallel/data/join.py", "join",
        "_anybody(t, mine is not _END)", "mine is not _END",
        "tests/parallel/data/test_join.py::test_ranks_that_have_run_out_count_with_no_samples"),
    Bug(
        "averages inside a node are of all ranks",
        "minidl/parallel/data/local_sgd.py", "LocalSGD.step",
        "inside[0]", "t",
        "tests/parallel/data/test_local_sgd.py::test_inside_a_node_more_often_than_across"),
    Bug(
        "the two batches change places in the noise scale",
        "minidl/parallel/data/noise_scale.py", "estimate",
        "large - v * small", "small - v * large",
        "tests/parallel/data/test_noise_scale.py::test_numbers_by_hand"),
    Bug(
        "noise of the code, over eps, moves weights without a gradient",
        "minidl/parallel/data/onebit_adam.py", "OneBitAdam.reduce",
        "g[v == 0] = 0", "pass",
        "tests/parallel/data/test_onebit_adam.py"
        "::test_a_weight_that_no_gradient_has_reached_is_left_alone"),
    Bug(
        "P is on the longer side",
        "minidl/parallel/data/powersgd.py", "PowerSGD.thin",
        "min(n, m), max", "max(n, m), min",
        "tests/parallel/data/test_powersgd.py"
        "::test_the_residual_is_the_bounded_one_whichever_side_is_shorter"),
    Bug(
        "the running variance is divided by n",
        "minidl/parallel/data/sync_batchnorm.py", "Normalise.forward",
        "(self.n - 1)", "self.n",
        "tests/parallel/data/test_sync_batchnorm.py"
        "::test_n_ranks_equal_one_rank_on_the_whole_batch"),
    Bug(
        "the others wait for a straggler that is out",
        "minidl/parallel/data/straggler.py", "Turns._meet",
        "rounds.n_rounds + min", "rounds.n_rounds + 0 * min",
        "tests/parallel/data/test_without.py::test_the_others_do_not_wait"),
    Bug(
        "position ids in order, of tokens in zigzag order",
        "minidl/parallel/model/context.py", "_positions",
        "t.rank, order", "t.rank, 'contiguous'",
        "tests/parallel/model/test_context.py::test_a_gpt_trains_as_on_one_rank"),
    Bug(
        "every stage has the embedding",
        "minidl/parallel/model/cut.py", "cut",
        "i == 0", "True",
        "tests/parallel/model/test_cut.py::test_the_stages_of_a_gpt_are_the_gpt"),
    Bug(
        "an expert's gradient is the sum of the ranks' means",
        "minidl/parallel/model/experts.py", "Ranks.run",
        "out, before=weight", "out, before=1",
        "tests/parallel/model/test_experts.py::test_n_ranks_equal_one_rank_with_all_tokens"),
    Bug(
        "a sum is written into its input",
        "minidl/parallel/model/functions.py", "all_reduce",
        "x.copy()", "x",
        "tests/parallel/model/test_functions.py::test_inputs_and_gradients_are_left_as_they_are"),
    Bug(
        "of a pipeline's weights the last stage's are gathered",
        "minidl/parallel/model/grid_gpt.py", "GridGPT.whole_state",
        "state in states", "state in states[-1:]",
        "tests/parallel/model/test_grid_gpt.py"
        "::test_its_loss_and_its_whole_state_are_the_undivided_models"),
    Bug(
        "the input's gradient is not waited for",
        "minidl/parallel/model/overlapped.py", "ColumnProduct.backward",
        "summed.wait()", "gx.copy()",
        "tests/parallel/model/test_tensor.py"
        "::test_loss_and_every_gradient_are_those_of_one_rank"),
    Bug(
        "a batch norm or experts between regions of sequence parallelism are taken",
        "minidl/parallel/model/parallelize.py", "parallelize",
        "of_all and any", "False and any",
        "tests/parallel/test_pairs.py"
        "::test_weights_that_see_a_block_of_the_tokens_alone_are_refused"),
    Bug(
        "a weight of two ranks counts twice in the norm",
        "minidl/parallel/model/pipeline.py", "Pipeline._find_tied",
        "p.copies * len(ranks)", "p.copies",
        "tests/parallel/model/test_pipeline.py"
        "::test_the_norm_is_over_all_stages_and_counts_a_shared_weight_once"),
    Bug(
        "a shared weight forgets its gradient of earlier steps",
        "minidl/parallel/model/pipeline.py", "Pipeline._set_aside",
        "= None if p.grad is None else p.grad.array.copy()", "= None",
        "tests/parallel/model/test_pipeline_accumulation.py"
        "::test_any_sequence_of_steps_gives_the_gradients_of_one_rank"),
    Bug(
        "the first stage with a weight averages it, before the last has added to it",
        "minidl/parallel/model/pipeline.py", "Pipeline._find_shared_here",
        "found[-1]", "found[0]",
        "tests/parallel/model/test_pipeline_accumulation.py"
        "::test_any_sequence_of_steps_gives_the_gradients_of_one_rank"),
    Bug(
        "a token's rows are planned as if it took one expert",
        "minidl/parallel/model/plan_costs.py", "block",
        "10 * k * C", "10 * C",
        "tests/parallel/model/test_plan_axes.py"
        "::test_activations_and_weights_with_experts_are_exact"),
    Bug(
        "ring attention's blocks are planned without the computation that overlaps",
        "minidl/parallel/model/plan_network.py", "pass_around_s",
        "max(visit, hop_s(usual, b))", "(visit + hop_s(usual, b))",
        "tests/parallel/model/test_plan_network.py"
        "::test_ring_attention_takes_the_time_of_its_messages"),
    Bug(
        "recompute sends nothing again",
        "minidl/parallel/model/plan_step.py", "sent",
        "(4 + 2 * again) * stage", "4 * stage",
        "tests/parallel/model/test_plan_costs.py::test_bytes_are_the_ledgers"),
    Bug(
        "the time of experts leaves out that recompute sends again",
        "minidl/parallel/model/plan_step.py", "seconds",
        "rows + again * there, 0.0), none, none", "rows, 0.0), none, none",
        "tests/parallel/model/test_plan_axes.py"
        "::test_experts_take_the_simulators_time_where_all_get_as_many_tokens"),
    Bug(
        "a plan has ZeRO 2's shards of gradients where a pipeline has whole ones",
        "minidl/parallel/model/plan_step.py", "waits_for_the_last",
        "zero == 2 and pp > 1", "False",
        "tests/parallel/model/test_plan_costs.py"
        "::test_bytes_and_gradients_of_pipelines_and_micro_batches_are_the_ledgers"),
    Bug(
        "a plan that does not fit is called slow",
        "minidl/parallel/model/plan_text.py", "why_not",
        "memory > task.memory", "memory < 0",
        "tests/parallel/model/test_planner.py"
        "::test_what_memory_forbids_is_said_with_what_it_would_need"),
    Bug(
        "the search ends with the first micro-batch",
        "minidl/parallel/model/planner.py", "_best",
        "best.time_s", "0",
        "tests/parallel/model/test_planner.py::test_what_is_left_out_is_not_better"),
    Bug(
        "a schedule's check lets a stage send without end",
        "minidl/parallel/model/schedule.py", "_check_progress",
        "last[do[:2]] = do", "pass",
        "tests/parallel/model/test_schedule.py"
        "::test_a_rank_that_does_not_take_messages_in_time_is_refused"),
    Bug(
        "inf on a rank is no matter of the other axes",
        "minidl/optim/over_ranks.py", "on_any_rank",
        "in groups:", "in groups[:1]:",
        "tests/parallel/model/test_hybrid.py::test_a_rank_with_inf_makes_all_ranks_skip"),
    Bug(
        "a recomputed stage has no second part",
        "minidl/parallel/model/split.py", "backward_to_inputs",
        "roots = _run_again(roots)", "pass",
        "tests/parallel/model/test_split.py"
        "::test_a_recomputed_segment_is_divided_where_it_is_all_there_is"),
    Bug(
        "a row layer's bias is added on every rank before the sum",
        "minidl/parallel/model/tensor.py", "RowLinear.forward",
        "(x, self.weight)", "(x, self.weight, self.bias)",
        "tests/parallel/model/test_tensor.py::test_an_mlp_of_a_width_that_no_rank_divides"),
    Bug(
        "a rank behind is looked at with the first half of the queries",
        "minidl/parallel/model/text_parts.py", "seen",
        "end - first, None", "end - first",
        "tests/parallel/model/test_context.py::test_the_ring_equals_one_rank"),
    Bug(
        "the exponentials are summed without their maximum",
        "minidl/parallel/model/vocabulary.py", "VocabCrossEntropy.forward",
        "device.all_reduce(t, lse.copy(), np.maximum)", "xp.zeros_like(lse)",
        "tests/parallel/model/test_vocabulary.py"
        "::test_large_logits_stay_finite_and_all_ranks_have_the_same_bits"),
    Bug(
        "sync adds in the order of arrival",
        "minidl/parallel/server/rules.py", "mean_of_all",
        "sorted(server.inbox.items())", "server.inbox.items()",
        "tests/parallel/server/test_server.py::test_sync_has_the_bits_of_data_parallelism"),
    Bug(
        "staleness is counted after the update",
        "minidl/parallel/server/server.py", "Server._pushed",
        "version, self.t", "version + 1, self.t",
        "tests/parallel/server/test_staleness.py"
        "::test_equal_workers_are_n_minus_1_updates_stale"),
    Bug(
        "servers treat a dead worker as a worker that has finished",
        "minidl/parallel/server/shards.py", "why_left",
        "if kind is None:", "if True:",
        "tests/parallel/server/test_failures.py::test_a_dead_worker_does_not_stop_the_others"),
    Bug(
        "a removed row leaves its state to the next",
        "minidl/parallel/server/table.py", "Table._forget",
        "array[slot] = 0", "pass",
        "tests/parallel/server/test_table.py"
        "::test_rows_and_counts_are_forgotten_with_their_state"),
    Bug(
        "a server saves before the others' cuts have come",
        "minidl/parallel/server/tables.py", "Tables.serve",
        "len(here)", "1",
        "tests/parallel/server/test_tables.py::test_a_cut_resumes_on_other_servers_and_workers"),
    Bug(
        "a warm start leaves the optimizer's state behind",
        "minidl/parallel/server/warm.py", "taken_over",
        "new[kind]", "new[kind] * (kind not in 'zn')",
        "tests/parallel/server/test_warm.py"
        "::test_new_rows_stay_and_those_of_both_come_with_their_state"),
    Bug(
        "differences are not divided among the workers",
        "minidl/parallel/server/worker.py", "Worker.push_difference",
        "values /= self.n_workers", "pass",
        "tests/parallel/server/test_geo.py::test_geo_adds_every_workers_progress_over_n"),
    Bug(
        "a job does not wait for those before it",
        "minidl/parallel/zero/lanes.py", "Modelled.run",
        "(), *after, 0.0", "(), 0.0",
        "tests/parallel/zero/test_lanes.py::test_modelled_lanes_overlap_as_the_formula_says"),
    Bug(
        "weights that come up count no version",
        "minidl/parallel/zero/offload.py", "Offload.send_up",
        "p.version += 1", "pass",
        "tests/parallel/zero/test_offload.py"
        "::test_a_graph_from_before_a_step_is_refused_as_its_weights_have_changed"),
    Bug(
        "a shard is the next rank's block",
        "minidl/parallel/zero/zero.py", "ShardedBucket.block",
        "self.t.rank", "(self.t.rank + 1) % self.t.size",
        "tests/parallel/zero/test_zero.py::test_float32_has_the_bits_of_data_parallelism"),
    Bug(
        "the batch of an absent rank of stage 3 counts",
        "minidl/parallel/zero/zero3.py", "Zero3.forward",
        'options["n_samples"] = 0', 'options["n_samples"] = 1',
        "tests/parallel/data/test_join.py"
        "::test_ranks_of_zero_that_have_run_out_count_with_no_samples"),
    Bug(
        "units stay whole after forward",
        "minidl/parallel/zero/zero3.py", "Zero3.leave",
        "self.free(buckets)", "pass",
        "tests/parallel/zero/test_zero_costs.py"
        "::test_two_units_and_a_share_of_the_weights_are_whole_at_most"),
    Bug(
        "a state is views of what training overwrites",
        "minidl/parallel/zero/zero3.py", "Zero3.state_dict",
        "array.copy()", "array",
        "tests/parallel/zero/test_zero_use.py"
        "::test_a_state_of_stage_3_is_what_it_was_when_it_was_taken"),
    Bug(
        "a copy behind the next steps is the live array",
        "minidl/snapshot/behind.py", "_copied",
        "host.copy() if isinstance(values, np.ndarray) else host", "host",
        "tests/snapshot/test_behind.py"
        "::test_it_writes_the_bytes_of_save_though_training_goes_on"),
    Bug(
        "queries, keys and values are cut as one piece when they are read",
        "minidl/snapshot/divided.py", "view",
        "repeats, bounds[-1]", "1, -1",
        "tests/snapshot/test_divided.py::test_what_one_grid_wrote_another_goes_on_from"),
    Bug(
        "the name is on the disk before the bytes",
        "minidl/snapshot/durable.py", "write",
        "os.fsync(file)", "pass",
        "tests/snapshot/test_snapshot_crashes.py"
        "::test_a_crash_at_any_call_leaves_the_previous_snapshot_or_the_new_one"),
    Bug(
        "an index may name files outside of its folder",
        "minidl/snapshot/folder.py", "_is_file",
        'FILE.fullmatch(file["name"]) and _is_whole', "_is_whole",
        "tests/snapshot/test_fit.py::test_an_index_cannot_name_files_outside_of_its_folder"),
    Bug(
        "a damaged snapshot is offered in another's place",
        "minidl/snapshot/folder.py", "instead",
        "step and not damage(folder, other)", "step",
        "tests/snapshot/test_lock.py"
        "::test_a_damaged_snapshot_names_the_last_one_before_it_that_is_whole"),
    Bug(
        "tensors in a file of others overlap",
        "minidl/snapshot/header.py", "_entries",
        "begin != at or end < begin", "end < begin",
        "tests/snapshot/test_header.py::test_what_the_format_forbids_is_refused"),
    Bug(
        "a model is made as large as its config.json says",
        "minidl/snapshot/hugging_face.py", "from_hugging_face",
        "n_numbers > sum(there.values()):", "False:",
        "tests/snapshot/test_header.py"
        "::test_a_model_of_sizes_that_the_files_do_not_hold_is_not_made"),
    Bug(
        "the warm-up starts again after a snapshot",
        "minidl/snapshot/residuals.py", "resume",
        'there["steps"]', "0",
        "tests/snapshot/test_residuals.py::test_a_resumed_run_is_the_run_that_never_stopped"),
    Bug(
        "a snapshot folder's lock is not asked for",
        "minidl/snapshot/lock.py", "_open_locked",
        "file, fcntl.LOCK_EX", "file, fcntl.LOCK_SH",
        "tests/snapshot/test_lock.py"
        "::test_a_second_writer_is_told_who_the_first_is_and_since_when"),
    Bug(
        "a region is read from the wrong place",
        "minidl/snapshot/regions.py", "fill",
        "start, high - start", "first, high - first",
        "tests/snapshot/test_regions.py::test_overlap_finds_what_was_cut_in_another_way"),
    Bug(
        "rows of all ranks begin at the same place",
        "minidl/snapshot/rows.py", "pieces",
        "width * sum(n[name] for n in before)", "0",
        "tests/snapshot/test_rows.py "
        "tests/data/stream/test_source.py::test_a_resume_on_another_number_of_ranks_is_exact"),
    Bug(
        "an array of another byte order is saved",
        "minidl/snapshot/snapshot.py", "refusal",
        "header.CODES or not array.dtype.isnative", "header.CODES",
        "tests/snapshot/test_round_trip.py"
        "::test_a_parameter_of_another_byte_order_is_refused"),
    Bug(
        "a file is not compared with its index",
        "minidl/snapshot/snapshot.py", "load",
        "or fit.file_misfit(path, file, index)", "",
        "tests/snapshot/test_resealed.py"
        "::test_a_damaged_file_whose_checksum_was_made_again"),
    Bug(
        "a state that is refused stays half loaded",
        "minidl/snapshot/snapshot.py", "_try_others",
        "others[key].load_state_dict(state)", "pass",
        "tests/snapshot/test_resealed.py"
        "::test_every_entry_of_the_index_made_another_is_refused_or_of_no_importance"),
    Bug(
        "rows may be as large as the index says",
        "minidl/snapshot/fit.py", "misfits",
        "wanted += [(name, 0, math.prod", "[(name, 0, math.prod",
        "tests/snapshot/test_resealed.py"
        "::test_what_only_loading_would_notice_is_noticed_before"),
    Bug(
        "a load counts versions down, and a write after it hides both",
        "minidl/snapshot/snapshot.py", "put",
        "leaf.version += 1", "leaf.version -= 1",
        "tests/snapshot/test_snapshot.py::test_what_backward_has_saved_is_stale_after_a_load"),
    Bug(
        "all ranks get rank 0's random numbers",
        "minidl/snapshot/snapshot.py", "_set_generators",
        "states[rank]", "states[0]",
        "tests/snapshot/test_snapshot.py::test_every_rank_gets_its_own_random_numbers_back"),
    Bug(
        "a full disk is one rank's own affair",
        "minidl/snapshot/snapshot.py", "write",
        "(problem for problem, _ in gathered)", "([problem])",
        "tests/snapshot/test_behind.py"
        "::test_a_rank_that_cannot_write_fails_on_all_and_leaves_the_one_before"),
]
