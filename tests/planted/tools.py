"""Planted bugs in data, the profile, the course and the command line: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "two of make install at once",
        "Makefile", "",
        "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB",
        "tests/test_at_once.py::test_two_of_make_install_once"),
    Bug(
        "a make that waited installs again",
        "Makefile", "",
        '[ "$$todo" ] || exit 0', "true",
        "tests/test_at_once.py::test_two_of_make_install_once"),
    Bug(
        "two runs write into one picture",
        "minidl/course/out.py", "write",
        "save(Path(own, path.name))", "save(path), Path(own, path.name).write_bytes(path.read_bytes())",
        "tests/test_at_once.py::test_a_picture_is_whole_while_another_run_saves_it"),
    Bug(
        "a hint says less than the function takes",
        "minidl/nn/layers.py", "Linear.forward",
        "x: Array", "x: int",
        "tests/test_hints.py::test_what_a_training_passes_is_of_the_types_of_the_hints"),
    Bug(
        "an argument of a layer has no hint",
        "minidl/nn/layers.py", "Dropout.__init__",
        "p: float", "p",
        "tests/test_hints.py::test_what_users_call_has_a_hint_for_each_argument"),
    Bug(
        "a program loads the hints",
        "minidl/comm/ring.py", "",
        "if TYPE_CHECKING:", "if not TYPE_CHECKING:",
        "tests/test_hints.py::test_a_program_does_not_load_them"),
    Bug(
        "products with a convolution's padding are counted",
        "benchmarks/conv_nets.py", "products_inside",
        "(0 <= read) & (read < size)", "read < size",
        "tests/benchmarks/test_conv_nets.py::test_products_with_padding_do_not_count"),
    Bug(
        "the gradient of the weight leaves the last pixels out",
        "tutorials/27_convolution.py", "weight_gradient",
        "range(0, len(of_pixel), step)", "range(0, len(of_pixel) - step, step)",
        "tests/tutorials/test_exercises.py::test_the_tutorial_passes_its_own_grader"),
    Bug(
        "of equally frequent pairs the tutorial takes the largest",
        "tutorials/30_tokens.py", "merge_step",
        "min(counts, key=lambda pair: (-counts[pair], pair)",
        "max(counts, key=lambda pair: (counts[pair], pair)",
        "tests/tutorials/test_exercises.py::test_the_tutorial_passes_its_own_grader"),
    Bug(
        "the tutorial joins the left pair that has a rank",
        "tutorials/30_tokens.py", "encode_word",
        "min(places)", "places[0]",
        "tests/tutorials/test_exercises.py::test_the_tutorial_passes_its_own_grader"),
    Bug(
        "the gradient of a rotation is turned on, not back",
        "tutorials/28_transformer.py", "rope",
        "turned(gy, -angles)", "turned(gy, angles)",
        "tests/tutorials/test_exercises.py::test_the_tutorial_passes_its_own_grader"),
    Bug(
        "top-p keeps one token more than it needs",
        "tutorials/28_transformer.py", "nucleus",
        "before < top_p", "before <= top_p",
        "tests/tutorials/test_exercises.py::test_the_tutorial_passes_its_own_grader"),
    Bug(
        "a Llama's operations leave out the scores that backward makes again",
        "minidl/nn/llama.py", "n_operations",
        "5 * one", "4 * one",
        "tests/nn/test_llama.py::test_parameters_and_operations_are_those_of_the_formulas"),
    Bug(
        "the bytes of a cache count only full blocks",
        "minidl/infer/cache.py", "n_bytes",
        "-(-context // 16) * 16", "context",
        "tests/infer/test_decoder.py"
        "::test_heads_of_keys_that_are_shared_make_the_cache_smaller"),
    Bug(
        "a tile of attention leaves the sum with the old maximum",
        "tutorials/29_flash_attention.py", "add_tile",
        "shrink * total", "total",
        "tests/tutorials/test_exercises.py::test_the_tutorial_passes_its_own_grader"),
    Bug(
        "the gradient of softmax is made from the keys of one tile",
        "tutorials/29_flash_attention.py", "tile_gradients",
        "(go * o).sum(axis=1, keepdims=True)", "(p * (go @ v.T)).sum(axis=1, keepdims=True)",
        "tests/tutorials/test_exercises.py::test_the_tutorial_passes_its_own_grader"),
    Bug(
        "a kernel in a script keeps its English comments",
        "minidl/course/comments.py", "_in_python",
        '"__global__" in text', '"__global__" in ""',
        "tests/course/test_comments.py::test_the_comments_of_a_script_are_found"),
    Bug(
        "a forgotten return is a riddle",
        "minidl/course/student.py", "explain",
        "if words in lines[-1]", "if words not in lines[-1]",
        "tests/tutorials/test_exercises.py"
        "::test_a_forgotten_return_is_refused_without_a_riddle"),
    Bug(
        "a number without a unit is a network",
        "minidl/comm/transport/links_text.py", "_items",
        "if re.fullmatch(_NUMBER, word)", "if not word",
        "tests/comm/transport/test_links_text.py"
        "::test_an_unreadable_text_says_what_was_wanted_and_shows_the_form"),
    Bug(
        "the sharded Adam of the tutorial takes the sum over the ranks",
        "tutorials/11_zero.py", "sharded_adam",
        "bounds) / t.size", "bounds)",
        "tests/tutorials/test_exercises.py"
        "::test_the_tutorial_passes_its_own_grader[11-11c]"),
    Bug(
        "AdamW's decay goes through the gradient",
        "tutorials/31_optimizers.py", "adamw_step",
        "w *= 1 - lr * decay", "g = g + decay * w",
        "tests/tutorials/test_exercises.py"
        "::test_the_tutorial_passes_its_own_grader[31-31a]"),
    Bug(
        "a convolution's fan_in forgets the window",
        "tutorials/31_optimizers.py", "he_variance",
        "math.prod(shape[1:])", "shape[1]",
        "tests/tutorials/test_exercises.py"
        "::test_the_tutorial_passes_its_own_grader[31-31b]"),
    Bug(
        "a step back through time goes through W turned around",
        "tutorials/32_recurrent.py", "step_back",
        "return gx, gx @ w", "return gx, gx @ w.T",
        "tests/tutorials/test_exercises.py"
        "::test_the_tutorial_passes_its_own_grader[32-32a]"),
    Bug(
        "two steps of a linear recurrence are combined in the other order",
        "tutorials/32_recurrent.py", "combine",
        "a2 * b1 + b2", "a1 * b2 + b1",
        "tests/tutorials/test_exercises.py"
        "::test_the_tutorial_passes_its_own_grader[32-32b]"),
    Bug(
        "the scatter of a fit divides by all points",
        "tutorials/33_scaling.py", "fit_power_law",
        "(len(u) - 2)", "len(u)",
        "tests/tutorials/test_exercises.py"
        "::test_the_tutorial_passes_its_own_grader[33-33a]"),
    Bug(
        "a budget is spent with alpha for beta",
        "tutorials/33_scaling.py", "compute_optimal",
        "(c / 6) ** (beta / (alpha + beta))", "(c / 6) ** (alpha / (alpha + beta))",
        "tests/tutorials/test_exercises.py"
        "::test_the_tutorial_passes_its_own_grader[33-33b]"),
    Bug(
        "a command uses the clone of the folder, not the clone of its file",
        "minidl/cli/clone.py", "wanted",
        "around(argument) or ", "",
        "tests/cli/test_clone.py::test_a_script_runs_with_the_clone_that_it_lies_in"),
    Bug(
        "a Chinese page shows the picture of any run",
        "docs/site.py", "picture_of",
        '{language}/{name}.png", f"out', '{name}.png", f"out/{language}',
        "tests/course/test_site.py"
        "::test_a_chinese_page_shows_a_chinese_picture_or_says_how_to_get_one"),
    Bug(
        "a notebook for Colab runs on the CPU of a machine with a GPU",
        "minidl/course/notebook.py", "INSTALL",
        'DEVICE = "cuda" if has_gpu else "cpu"', 'DEVICE = "cpu"',
        "tests/course/test_notebook.py::test_one_for_colab_installs_minidl_and_looks_for_a_gpu"),
    Bug(
        "a release goes out with placeholders",
        "tests/release.py", "missing",
        'if not places or any("example.org" in line for line in places)', "if not places",
        "tests/test_habits.py::"
        "test_a_release_wants_real_addresses_a_changelog_and_a_clean_checkout"),
    Bug(
        "a wheel has the kernels without their folders",
        "setup.py", "",
        '"kernels": ["**/*"]', '"kernels": ["*.cu"]',
        "tests/test_dist.py::test_what_is_built_has_every_kernel_tutorial_and_translation"),
    Bug(
        "a rank sees the GPU of its number among all ranks of its machine, there or not",
        "minidl/cli/gpus.py", "own_gpu",
        "rank % len(gpus)", "min(rank, len(gpus) - 1)",
        "tests/cli/test_gpus.py::test_ranks_take_turns"),
    Bug(
        "numbers of Slurm's hosts lose their zeros",
        "minidl/cli/hosts.py", "_numbers",
        '"{i:0{len(a)}}"', '"{i}"',
        "tests/cli/test_hosts.py::test_hosts_of_a_slurm_job"),
    Bug(
        "a rung is left out of the bench",
        "minidl/cli/kernel_rungs.py", "softmax",
        "row_rungs(x), gy, y", "(1, 2), gy, y",
        "tests/cli/test_kernel_bench.py"
        "::test_every_rung_of_our_kernels_is_run_and_is_right[softmax]"),
    Bug(
        "an mpiexec of another installation is preferred",
        "minidl/cli/machine.py", "find_mpiexec",
        "(beside, None)", "(None, beside)",
        "tests/cli/test_main.py::test_mpiexec_beside_this_python_goes_before_the_path"),
    Bug(
        "a node without cpus is taken for one with all",
        "minidl/cli/numa.py", "cpus_in",
        "text.strip()", '(text.strip() or "0-7")',
        "tests/cli/test_numa.py::test_nodes_with_holes_and_one_of_memory_alone"),
    Bug(
        "a GiB is a GB",
        "minidl/cli/plan.py", "UNITS",
        '"i", 1024', '"i", 1000',
        "tests/cli/test_plan.py::test_units"),
    Bug(
        "a script that fails is reported as if it had ended",
        "minidl/cli/profiled.py", "around",
        "if end.code:", "if False:",
        "tests/profile/test_cli.py::test_a_script_that_fails_fails"),
    Bug(
        "a rank that leaves by itself is not seen by MPI",
        "minidl/cli/rank.py", "_guard",
        "if heals and status:", "if heals and status < 0:",
        "tests/elastic/test_heal_mpi.py::test_survivors_do_the_step_again[zero1-exit-doomed3]"),
    Bug(
        "a run counts as a success although its first rank died before it wrote the model",
        "minidl/cli/supervisor.py", "Supervisor._judge_healed",
        "any(rank.first for rank in others)", "others",
        "tests/cli/test_supervisor.py"
        "::test_a_first_rank_that_dies_after_training_has_not_written_the_result"),
    Bug(
        "a run that heals waits in world() for the dead",
        "minidl/cli/supervisor.py", "Supervisor._judge_healing",
        'rank.state in ("born", "joining")]', "False]",
        "tests/cli/test_supervisor.py::test_a_death_before_world_ends_a_run_that_heals"),
    Bug(
        "healing may take for ever",
        "minidl/cli/supervisor.py", "Supervisor._judge_healing",
        "> self.start_s", "> 1e9",
        "tests/cli/test_supervisor.py::test_healing_has_its_time"),
    Bug(
        "a pair is blamed that did not die",
        "minidl/elastic/buddy.py", "why_nothing",
        ".isdisjoint(alive)", ".difference(alive)",
        "tests/elastic/test_buddy.py::test_a_pair_is_blamed_only_if_it_died"),
    Bug(
        "a rank begins without its launcher",
        "minidl/cli/rank.py", "_links",
        "except (ConnectionRefusedError, ", "except (",
        "tests/cli/test_supervisor.py::test_a_rank_whose_launcher_is_gone_does_not_begin"),
    Bug(
        "a rank goes on alone if its launcher is killed during its call",
        "minidl/cli/rank.py", "_links",
        "ConnectionResetError, ", "",
        "tests/cli/test_supervisor.py::test_a_rank_whose_launcher_ends_during_its_call_ends"),
    Bug(
        "a profile that cannot be written ends with a traceback",
        "minidl/cli/profiled.py", "around",
        "except OSError as error", "except KeyError as error",
        "tests/profile/test_cli.py::test_a_file_that_cannot_be_written_is_named[None]"),
    Bug(
        "Ctrl-C is lost if mpiexec ends before the supervisor looks",
        "minidl/cli/supervisor.py", "Supervisor.run",
        "self._hear(0.0, wake)", "pass",
        "tests/cli/test_supervisor.py::test_the_first_signal_ends_the_run[0]"),
    Bug(
        "an mpiexec that was killed is not named",
        "minidl/cli/supervisor.py", "Supervisor.run",
        "if self.status is None and child.returncode < 0", "if False",
        "tests/cli/test_leftovers.py::test_mpiexec_that_is_killed_is_named_and_leaves_nothing"),
    Bug(
        "what MPI leaves stays",
        "minidl/cli/supervisor.py", "Supervisor.end",
        "traces.remove(self._traces)", "pass",
        "tests/cli/test_leftovers.py::test_mpiexec_that_is_killed_is_named_and_leaves_nothing"),
    Bug(
        "all wait for a rank that has ended well before world()",
        "minidl/cli/supervisor.py", "Supervisor._judge_absent",
        "if absent and waiting", "if False",
        "tests/cli/test_supervisor.py::test_a_rank_that_ends_well_before_world_is_named"),
    Bug(
        "a generator of one's own is Python between the operators",
        "minidl/profile/summary.py", "before_forwards",
        'kind, since = "optimizer", begin', "kind, since = None, begin",
        "tests/profile/test_advice.py::test_a_generator_of_ones_own_is_input_too"),
    Bug(
        "an error that is its own cause is followed for ever",
        "minidl/course/student.py", "explain",
        "not in (None, *seen)", "is not None",
        "tests/course/test_student.py::test_an_error_that_is_its_own_cause_is_explained"),
    Bug(
        "a line of a rank is taken as it is",
        "minidl/cli/supervisor.py", "Supervisor._read",
        "self._heard(lines, checked(line))", "self._heard(lines, line)",
        "tests/cli/test_supervisor.py"
        "::test_a_line_that_is_not_ours_ends_its_connection_and_nothing_else"),
    Bug(
        "the launcher listens on every address",
        "minidl/cli/launcher.py", "names_hosts",
        "len(launcher) > 1", "len(launcher) > 0",
        "tests/cli/test_main.py"
        "::test_only_where_hosts_may_be_named_do_others_reach_the_launcher"),
    Bug(
        "a bug with an address in its message counts as a new bug each time",
        "minidl/cli/restarts.py", "DIFFERS",
        "[0-9a-fA-F]+|", "[0-9]+|",
        "tests/cli/test_restarts.py::test_the_same_way_has_other_addresses_and_times"),
    Bug(
        "a bug is started again and again",
        "minidl/cli/restarts.py", "until_done",
        "is_bug(past)", "False",
        "tests/cli/test_restarts.py::test_the_same_step_failing_twice_in_the_same_way_is_a_bug"),
    Bug(
        "every rank reads the file of --stdin",
        "minidl/cli/stdin.py", "take",
        "os.devnull if rank else file", "file",
        "tests/cli/test_numa.py::test_only_rank_0_has_the_file"),
    Bug(
        "a run that nobody survives has ended well",
        "minidl/cli/supervisor.py", "Supervisor._judge_lost",
        '"no rank is left", 1', '"no rank is left", 0',
        "tests/cli/test_supervisor.py::test_a_run_that_heals_fails_when_nobody_is_left"),
    Bug(
        "a translated comment takes the code before it away",
        "minidl/course/comments.py", "_written",
        "{space if i else start}", "{space}",
        "tests/course/test_comments.py"
        "::test_a_script_in_chinese_has_the_same_code_and_no_english_comment"),
    Bug(
        "the power is back for a save that has caught its failure",
        "minidl/course/disk.py", "Disk._power",
        "(self.calls) >= self", "(self.calls) == self",
        "tests/course/test_disk.py::test_who_catches_the_failure_has_no_power_either"),
    Bug(
        "starting one exercise again loses the others",
        "minidl/course/exercise.py", "write",
        "(number) > 2", "(number) > 3",
        "tests/course/test_exercise.py::test_one_exercise_is_blanked_and_the_others_stay"),
    Bug(
        "an exercise that failed keeps its points",
        "minidl/course/grade.py", "_graded",
        'verdict == "passed"', 'verdict != "not graded"',
        "tests/course/test_report.py::test_points_are_those_of_the_course_all_or_none"),
    Bug(
        "Ctrl-C is lost while a command's modules are imported",
        "minidl/__main__.py", "main",
        "signal.signal(signal.SIGINT, signal.SIG_DFL)", "pass",
        "tests/cli/test_main.py"
        "::test_ctrl_c_cannot_be_lost_while_the_modules_of_a_command_are_imported"),
    Bug(
        "after an endless loop the next exercise has no process",
        "minidl/course/grade.py", "grade",
        "student.restart()", "pass",
        "tests/course/test_exercise.py::test_an_endless_loop_is_stopped_and_its_line_shown"),
    Bug(
        "the table of a class does not name what was not graded",
        "minidl/course/report.py", "_graded",
        'if r.verdict == "not graded"', 'if r.verdict == "FAILED"',
        "tests/course/test_report.py::test_a_class_is_a_line_for_each_folder"),
    Bug(
        "what a student's code began in a session of its own goes on",
        "minidl/course/guard.py", "_end_the_rest",
        "os.kill(pid, signal.SIGKILL)", "pass",
        "tests/course/test_guard.py::test_no_process_of_an_answer_is_left"),
    Bug(
        "the table of a class is written at the end only",
        "minidl/course/report.py", "grade_class",
        "_write_table(Path(table), lines)", "pass",
        "tests/course/test_report.py::test_what_is_graded_is_in_the_table_when_the_grader_ends"),
    Bug(
        "a handout has the functions that tell the answer",
        "minidl/course/handout.py", "public",
        "inside = inside or start", "inside = False",
        "tests/course/test_handout.py::test_a_reference_is_a_function_that_is_not_there"),
    Bug(
        "a hole in a message reaches over lines, and a report's first line stays in English",
        "minidl/text.py", "_hole",
        'found[1] == "9"', 'found[1] >= "0"',
        "tests/course/test_language.py"
        "::test_a_report_of_several_lines_is_translated_line_by_line"),
    Bug(
        "a notebook's last cell runs on one rank",
        "minidl/course/notebook.py", "_call",
        "k.value", "ast.Constant(1)",
        "tests/course/test_notebook.py::test_the_last_cell_runs_what_the_script_launches"),
    Bug(
        "a file of today's name is written over by one of an old name",
        "minidl/course/renamed.py", "bring_up_to_date",
        "path.exists() and today.exists()", "False",
        "tests/course/test_renamed.py::test_a_file_that_is_there_already_stays_and_both_are_named"),
    Bug(
        "an answer that was edited after its check still counts as passed",
        "minidl/course/report.py", "progress",
        '("code") == theirs[r.id]', '("code")',
        "tests/course/test_report.py::test_progress_knows_blank_passed_failed_and_edited"),
    Bug(
        "objects travel from the student's process as numbers",
        "minidl/course/student.py", "_plain",
        'kind in "biufc"', 'kind in "biufcO"',
        "tests/course/test_student.py::test_what_is_no_number_does_not_travel"),
    Bug(
        "an absolute bound is taken as a relative one",
        "minidl/course/table.py", "holds",
        'kind == "rel"', 'kind == "abs"',
        "tests/course/test_table.py::test_rules"),
    Bug(
        "a run that is over is begun again",
        "minidl/course/training.py", "first_step",
        "steps <= start", "steps < start",
        "tests/tutorials/test_train_gpt.py::test_a_run_that_is_over_cannot_be_resumed"),
    Bug(
        "a training of no steps is begun",
        "minidl/course/tutorial.py", "_parse",
        "(default, 1)", "(default, 0)",
        "tests/cli/test_wrong_commands.py::test_the_answer_says_what_to_do"),
    Bug(
        "Little's law is rounded down",
        "minidl/data/prefetch.py", "workers_for",
        "1, math.ceil", "1, int",
        "tests/data/test_prefetch.py::test_workers_by_little_s_law"),
    Bug(
        "a pair that has become rarer keeps its place in the heap",
        "minidl/data/byte_pairs.py", "learn_pairs",
        "if -count != n_times[pair]", "if False",
        "tests/data/test_byte_pairs.py::test_each_pair_is_the_most_frequent_of_its_time"),
    Bug(
        "pairs join from the left, in whatever order they were learned",
        "minidl/data/byte_pairs.py", "Tokenizer.encode_word",
        "heapq.heappop(heap)", "heap.pop(heap.index(min(heap, key=lambda entry: entry[1])))",
        "tests/data/test_byte_pairs.py::test_the_first_learned_pair_joins_first"),
    Bug(
        "a piece of a text that ends in a space gives the next word none",
        "minidl/data/words.py", "words",
        "while found and start > end:", "while False:",
        "tests/data/test_words.py::test_pieces_have_the_words_of_the_whole_text"),
    Bug(
        "merges.txt may lack its end",
        "minidl/data/vocabulary_files.py", "_checked",
        "name not in made and", "False and",
        "tests/data/test_vocabulary_files.py::test_damaged_merges_name_the_line"),
    Bug(
        "a cache's records begin where the one before began",
        "minidl/data/cache.py", "Folder._write",
        "self.end += len(record)", "pass",
        "tests/data/test_cache.py::test_ranks_and_later_runs_read_what_others_made"),
    Bug(
        "a batch holds its samples backwards",
        "minidl/data/collate.py", "_stacked",
        "stack(values)", "stack(values)[::-1]",
        "tests/data/test_loader.py::test_batches_keep_the_order"),
    Bug(
        "random parts overlap",
        "minidl/data/dataset.py", "random_split",
        "order[end - part:end]", "order[:part]",
        "tests/data/test_dataset.py::test_random_split_deals_every_sample_once"),
    Bug(
        "test digits are in the training set",
        "minidl/data/datasets.py", "digits",
        "order[360:]", "order[300:]",
        "tests/data/test_datasets.py::test_digits_are_split_once_and_completely"),
    Bug(
        "a flight has no hour among its features",
        "minidl/data/flights.py", "flights",
        '"hour", at', '"dest", dest',
        "tests/data/test_flights.py::test_equal_values_have_one_number_and_others_their_own"),
    Bug(
        "an element in a cache is taken for another one",
        "minidl/data/cache.py", "_checksum",
        "record, number % (1 << 32)", "record",
        "tests/data/test_cache.py::test_an_entry_of_another_number_is_not_taken_for_it"),
    Bug(
        "a pickle that another user can write is read",
        "minidl/data/cache.py", "Folder.begin",
        "_is_ours(index) and _is_ours(data)", "True",
        "tests/data/test_cache.py::test_what_another_user_can_write_is_not_read"),
    Bug(
        "the sizes of an IDX file are written in this machine's order",
        "minidl/data/idx.py", "write",
        'shape, ">u4"', 'shape, "u4"',
        "tests/data/test_idx.py::test_write_makes_the_golden_bytes"),
    Bug(
        "a token budget counts tokens, not places",
        "minidl/data/lengths.py", "pools",
        "(k - begin + 1) * n", "lengths[some[begin:k + 1]].sum()",
        "tests/data/test_lengths.py::test_a_token_budget_is_kept_when_padded"),
    Bug(
        "weights are taken as equal",
        "minidl/data/order.py", "WeightedRandomSampler.__iter__",
        "cumsum(w)", "cumsum(w > 0)",
        "tests/data/test_order.py::test_weights_are_frequencies"),
    Bug(
        "a run that was loaded goes on with the batch it had begun",
        "minidl/data/passes.py", "Passes.load_state_dict",
        "self._batches = None", "self._batches = iter(self.loader); next(self._batches, None)",
        "tests/data/test_passes.py::test_it_goes_on_where_it_was"),
    Bug(
        "a rank ends with its own pipe",
        "minidl/data/pipe.py", "Pipe.__iter__",
        "if not total:", "if not lines:",
        "tests/data/test_pipe.py::test_unequal_pipes_give_every_record_once"),
    Bug(
        "the ranks draw their own orders",
        "minidl/data/sampler.py", "DistributedSampler._order",
        "n, self.seed", "n, self.seed + self.rank",
        "tests/data/test_sampler.py::test_uneven_shares_hold_every_index_exactly_once"),
    Bug(
        "two stages of a pipeline draw the same numbers",
        "minidl/data/stages.py", "stream",
        "depth << 57", "1 << 57",
        "tests/data/test_pipeline.py"
        "::test_random_maps_follow_the_seed_the_epoch_and_the_element"),
    Bug(
        "a gzip bomb is unpacked as far as it goes",
        "minidl/data/idx.py", "_array",
        "n_dims > MOST_DIMENSIONS or wanted > most_bytes", "n_dims > MOST_DIMENSIONS",
        "tests/data/test_idx.py::test_a_gzip_bomb_takes_no_more_memory_than_allowed"),
    Bug(
        "a log reads as many bytes as a damaged index says",
        "minidl/data/stream/folder.py", "FolderLog._read",
        "| (ends > size)", "",
        "tests/data/stream/test_folder.py::test_an_entry_of_two_gigabytes_is_not_read"),
    Bug(
        "an append that fails says that nothing is there",
        "minidl/data/stream/folder.py", "FolderLog._unwritten",
        "max(self._n(partition, base) - n, 0)", "0",
        "tests/data/stream/test_folder.py::test_an_append_that_fails_says_how_much_is_there"),
    Bug(
        "an append that fails as it begins a segment says 'no such file'",
        "minidl/data/stream/folder.py", "FolderLog._unwritten",
        "suppress(FileNotFoundError)", "suppress(EOFError)",
        "tests/data/stream/test_folder.py::test_an_append_that_fails_says_how_much_is_there"),
    Bug(
        "a checksum does not cover the entry",
        "minidl/data/stream/folder.py", "_checksums",
        "crc32, values, places", "crc32, values",
        "tests/data/stream/test_folder.py::test_a_flipped_bit_is_noticed"),
    Bug(
        "what waits for a label is not in the snapshot",
        "minidl/data/stream/join.py", "_Merge.__init__",
        "self._wait", "kind == 3 and self._wait",
        "tests/data/stream/test_join.py::test_a_resume_goes_on_with_what_waited"),
    Bug(
        "Kafka's message for the end of a partition is read as a record",
        "minidl/data/stream/kafka.py", "KafkaLog.read",
        "min() < 0", "min() < -1",
        "tests/data/stream/test_kafka.py::test_what_comes_later_is_read_without_a_wait_for_more"),
    Bug(
        "each rank has an AUC of its own",
        "minidl/data/stream/prequential.py", "Prequential.report",
        "t is not None", "False",
        "tests/data/stream/test_prequential.py::test_the_ranks_counts_are_those_of_one"),
    Bug(
        "records go into the log that another program made again",
        "minidl/data/stream/redis.py", "FIRST",
        "about ~= ARGV[1]", "about == ''",
        "tests/data/stream/test_redis.py::test_nothing_is_written_into_a_log_that_was_made_again"),
    Bug(
        "a server that was restarted empty is the same log",
        "minidl/data/stream/redis.py", "RedisLog._same",
        "about != self.about", "False",
        "tests/data/stream/test_redis.py"
        "::test_a_server_that_was_restarted_without_its_file_is_named"),
    Bug(
        "all blocks are permuted alike",
        "minidl/data/stream/source.py", "_Blocks._permuted",
        "first << 32", "0",
        "tests/data/stream/test_source.py"
        "::test_a_block_is_permuted_by_its_partition_and_its_place"),
    Bug(
        "every rank draws its own windows alone",
        "minidl/data/text.py", "random_batches",
        "places[rank]", "places[0]",
        "tests/data/test_text.py::test_ranks_together_see_the_batch_of_one_rank"),
    Bug(
        "a batch is copied over what the step before still reads",
        "minidl/data/upload.py", "Upload._copy",
        "self.copies.wait_event(free)", "pass",
        "tests/data/test_upload.py::test_memory_comes_back_while_copies_are_under_way", on_stand_in=True),
    Bug(
        "one rank's lateness in turn is blamed on one",
        "minidl/profile/advice.py", "_whom",
        "0.8 * late", "0.0 * late",
        "tests/profile/test_advice.py::test_ranks_that_wait_for_one_and_ranks_that_wait_in_turn"),
    Bug(
        "a clock's offset is taken from one direction",
        "minidl/profile/clocks.py", "measure",
        "(here + there) / 2", "here",
        "tests/profile/test_clocks.py::test_the_offset_is_that_of_the_middle_of_a_round_trip"),
    Bug(
        "a profile waits for each of its events",
        "minidl/profile/device.py", "Device._mark",
        "record(stream)", "record(stream), mark[0].synchronize()",
        "tests/profile/test_device.py"
        "::test_operators_and_kernels_of_a_step_are_there_and_nobody_waits", on_stand_in=True),
    Bug(
        "peaks are kept in one file whatever was asked for",
        "minidl/profile/peaks.py", "file_of",
        "{device}-{cuda.n_threads()}", "{cuda.n_threads()}",
        "tests/profile/test_flops.py::test_peaks_are_measured_once_and_kept"),
    Bug(
        "the roof is drawn at the bandwidth alone",
        "minidl/profile/picture.py", "_roofline",
        'min(peak["float32"], peak["bandwidth"] * at)', '(peak["bandwidth"] * at)',
        "tests/profile/test_page.py::test_the_picture_has_a_lane_for_each_rank_and_a_roofline"),
    Bug(
        "the second message is called as the first",
        "minidl/profile/record.py", "Profile.number",
        "next(self._numbers[key])", "0",
        "tests/profile/test_trace.py::test_4_ranks_times_100_steps_are_valid"),
    Bug(
        "time on float64 has no column of its own",
        "minidl/profile/report.py", "_operators",
        '" float64" * (op["dtype"] == "float64")', '""',
        "tests/profile/test_report.py::test_the_report_has_every_part"),
    Bug(
        "the waits for the slowest rank count as moving bytes",
        "minidl/profile/summary.py", "_rank",
        "own_s -= wait_s", "own_s -= 0",
        "tests/profile/test_summary.py"
        "::test_waiting_for_the_slowest_rank_is_apart_from_moving_bytes"),
    Bug(
        "messages of a sendrecv count twice",
        "minidl/profile/instrument.py", "_message_tap",
        "lane.muted += 1", "lane.muted += 0",
        "tests/profile/test_record.py::test_a_collective_has_its_bytes_peers_and_line"),
    Bug(
        "an arrow ends where it began",
        "minidl/profile/trace.py", "events",
        'way == "send"', "way",
        "tests/profile/test_trace.py::test_a_message_goes_to_the_rank_that_it_was_sent_to"),
    Bug(
        "a peer that ran nothing is green",
        "tests/peers/__main__.py", "main",
        'or not counts["passed"]', "",
        "tests/test_peers.py::test_a_wrong_answer_is_red_and_so_is_a_peer_that_ran_nothing"),
    Bug(
        "the weights of a program may be whatever they like",
        "tests/programs/test_programs.py", "compare",
        "not d <= WEIGHTS", "d <= 0",
        "tests/programs/test_programs.py::test_one_wrong_line_is_seen"),
    Bug(
        "a GRU mixes old and new state by the reset gate",
        "minidl/ops/extra/recurrent.py", "Gru.forward",
        "(1 - z) * n + z * h", "(1 - r) * n + r * h",
        "tests/programs/test_programs.py"
        "::test_a_program_computes_what_it_computes_on_pytorch[name_gru]"
        " tests/nn/test_recurrent.py"),
    Bug(
        "an op says that it returns something else, and editors are not told",
        "minidl/ops/convert.py", "is_contiguous",
        "-> bool", "-> int",
        "tests/test_stubs.py::test_the_stubs_are_current"),
    Bug(
        "x.add_ has the arguments of any op",
        "minidl/ops/extra/in_place_forms.py", "form",
        "in_place.__wrapped__ = op", "in_place.wrapped = op",
        "tests/test_stubs.py::test_the_stubs_are_current"),
    Bug(
        "a name that is imported on first use is not listed",
        "minidl/nn/__init__.py", "__dir__",
        ', "SyncBatchNorm"', "",
        "tests/test_stubs.py::test_the_stubs_are_current"),
    Bug(
        "an argument has the type of another one with its name",
        "tests/stubs.py", "type_of",
        'f"{op}.{p.name}"', 'p.name',
        "tests/test_stubs.py::test_the_stubs_are_current"),
    Bug(
        "a GPU's day does again what was done before a kill",
        "benchmarks/gpu_day.py", "work",
        "if file.name not in done", "if True",
        "tests/benchmarks/test_gpu_day.py"
        "::test_killed_during_a_part_its_process_ends_and_the_part_alone_is_done_again"),
    Bug(
        "a step of a GPU's day lives on when its command is killed",
        "benchmarks/gpu_day.py", "work",
        "end_with_parent()", "pass",
        "tests/benchmarks/test_gpu_day.py"
        "::test_killed_during_a_part_its_process_ends_and_the_part_alone_is_done_again"),
    Bug(
        "each step of a GPU's day may use its full time, even if the day is late",
        "benchmarks/gpu_day.py", "run",
        "min(limit_s, left_s)", "limit_s",
        "tests/benchmarks/test_gpu_day.py::test_all_steps_take_ten_minutes_at_most"),
    Bug(
        "a part that hangs takes the time of those behind it",
        "benchmarks/gpu_day.py", "wait",
        "clock() >= since + part_s", "False",
        "tests/benchmarks/test_gpu_day.py"
        "::test_a_part_beyond_its_limit_is_ended_and_said_and_the_next_one_runs"),
    Bug(
        "on a GPU a rung of the bench runs the kernel of another one",
        "minidl/cli/kernel_rungs_more.py", "replaced",
        "new * name.endswith(old)", "old * name.endswith(old)",
        "tests/cli/test_kernel_bench.py::test_on_a_gpu_every_kernel_is_a_rung_and_right"),
    Bug(
        "a grader's message shows two different numbers with the same digits",
        "minidl/course/grade.py", "apart",
        "range(6, 18)", "range(6, 7)",
        "tests/course/test_exercise.py"
        "::test_two_numbers_that_differ_late_are_shown_with_the_digits_that_differ"),
    Bug(
        "a quick run of the benchmarks does not see that one of them failed",
        "benchmarks/run_all.py", "try_all",
        "if found is None", "if found",
        "tests/benchmarks/test_figures.py::test_a_quick_run_names_the_benchmarks_that_fail"),
    Bug(
        "the figures of a GPU are taken for the newest of all benchmarks",
        "benchmarks/run_all.py", "newest",
        'set(folder.glob(GPU_DAY))', "set()",
        "tests/benchmarks/test_figures.py"
        "::test_a_gpus_day_stands_behind_the_table_and_is_no_result_of_the_others"),
]
