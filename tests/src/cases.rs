//! The list of cases, and the one line that makes tests of them.

/// Makes a test of every case for a transport: `conformance!(shm, Real::new("shm"));`. With `simulated` behind it, only of
/// those that never block.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $fabric:expr, simulated) => {
        mod $name {
            #[allow(unused_imports, reason = "the fabric is named from outside")]
            use super::*;
            $crate::cases_that_never_block!($fabric);
        }
    };
    ($name:ident, $fabric:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the fabric is named from outside")]
            use super::*;
            $crate::cases_that_never_block!($fabric);
            $crate::cases_in_real_time!($fabric);
        }
    };
}

/// Tests of each case of each topic.
#[doc(hidden)]
#[macro_export]
macro_rules! tests_of {
    ($fabric:expr; $($topic:ident by $run:ident: $($case:ident)+;)+) => {
        $(
            mod $topic {
                #[allow(unused_imports, reason = "the fabric is named from outside")]
                use super::*;
                $(
                    #[test]
                    fn $case() {
                        let name = concat!(module_path!(), "::", stringify!($case));
                        $crate::$run(name, $fabric, $crate::conformance::$topic::$case);
                    }
                )+
            }
        )+
    };
}

/// Cases that run under a virtual clock too.
#[doc(hidden)]
#[macro_export]
macro_rules! cases_that_never_block {
    ($fabric:expr) => {
        $crate::tests_of! { $fabric;
            put_get by case:
                borrowed_bytes_arrive_whole_and_nothing_beside_them
                registered_bytes_arrive_whole_and_nothing_beside_them
                a_slice_of_a_slice_is_sent_from_its_own_place
                every_kind_of_memory_is_source_and_target
                what_follows_a_fence_lands_after_what_came_before
                many_more_requests_than_a_queue_holds_all_arrive
                random_puts_and_gets_leave_what_a_model_has
                operations_of_no_bytes_succeed_up_to_the_end_and_not_behind_it
                what_reaches_over_the_end_is_refused_whole;
            sizes by case:
                a_region_of_5_gib_is_usable_to_its_last_byte
                a_put_across_2_and_4_gib_is_whole
                one_put_and_one_get_of_a_whole_region;
            signals by case:
                who_sees_a_signal_sees_every_put_before_it
                a_bare_signal_and_an_empty_put_signal_carry_every_put_before_them
                ten_thousand_adds_of_four_senders_are_all_counted
                any_and_all_waits_answer_what_is_there
                an_expired_wait_takes_its_time_and_nothing_else
                a_wait_that_is_dropped_loses_no_count
                a_hundred_waits_for_one_signal_all_end
                adding_nothing_changes_nothing_and_large_adds_are_exact
                an_add_that_would_wrap_is_refused_and_changes_nothing
                a_thousand_signals_are_a_thousand_counters
                a_signal_that_does_not_exist_is_refused_before_its_put;
            atomics by case:
                every_atomic_returns_what_was_there_and_leaves_what_the_model_has
                fetch_adds_of_everybody_return_each_number_once
                a_compare_swap_has_one_winner
                atomics_out_of_place_or_of_no_known_width_are_refused
                atomics_in_a_part_that_begins_between_words_are_refused_by_either_side
                atomics_see_the_puts_before_a_fence_and_flush_covers_them;
            accumulate by case:
                every_type_and_reduction_makes_what_the_scalar_model_makes
                typed_elements_are_reduced_as_their_type
                two_who_accumulate_at_once_lose_nothing
                a_part_that_begins_between_elements_is_reduced_right_or_refused
                accumulates_out_of_place_are_refused_whole;
            lists by case:
                random_lists_are_what_the_model_scatters_and_gathers
                fifteen_thousand_parts_are_one_transfer_that_can_be_replayed
                lists_that_are_scattered_on_both_sides_move_each_part_to_its_place
                places_that_do_not_fit_or_overlap_are_refused_whole
                parts_larger_than_any_frame_are_whole
                lists_order_like_puts_before_a_signal
                empty_lists_succeed_and_touch_nothing
                a_list_with_one_part_out_of_place_is_refused_whole
                a_list_that_overlaps_its_own_memory_is_refused_whole;
            completion by case:
                flush_covers_everything_begun_before_it
                flush_of_one_handle_covers_its_clones
                flush_and_fence_with_nothing_to_do_succeed_again_and_again
                a_flush_that_is_dropped_ends_nothing
                a_request_tells_its_outcome_as_often_as_it_is_asked
                a_lost_put_is_told_once_and_its_signal_does_not_overtake_it
                what_follows_an_operation_that_the_target_refused_waits_for_the_flush
                regions_fail_each_for_itself;
            rights by case:
                each_operation_needs_its_right_and_changes_nothing_without_it
                one_export_gives_nothing_to_another
                rights_and_ranges_cannot_be_raised_by_editing_a_descriptor
                signals_cannot_be_made_by_editing_a_descriptor
                a_part_is_a_region_of_its_own_and_its_edges_hold
                memory_that_is_only_read_is_never_written;
            identity by case:
                an_old_generation_is_refused_and_the_new_region_stays_as_it_is
                a_region_ends_with_its_last_handle_and_slice
                slots_and_generations_that_never_were_are_refused
                another_epoch_is_refused_and_its_own_is_not
                another_incarnation_is_refused
                a_descriptor_survives_being_pasted;
            lifetime by case:
                everything_may_be_dropped_in_any_order_while_a_transfer_runs
                a_dropped_request_leaves_its_memory_whole_until_the_transfer_ends
                memory_and_its_owner_live_until_the_peer_lets_go_and_no_longer
                sixty_four_regions_are_kept_apart
                a_closed_region_says_so_and_the_others_go_on
                a_dropped_context_is_told_as_left
                a_closed_context_is_told_as_left
                a_context_that_was_closed_refuses_every_call
                a_wait_that_runs_when_its_context_is_closed_ends
                contexts_come_and_go_and_the_owner_keeps_serving;
            bad_input by case:
                overlapping_source_and_target_are_refused
                descriptors_without_a_way_are_unreachable_and_say_what_was_tried
                nonsense_at_registration_is_refused
                calls_that_would_block_say_so_under_a_virtual_clock
                an_error_leaves_the_region_in_order;
        }
    };
}

/// Cases that block, start threads, or measure their process.
#[doc(hidden)]
#[macro_export]
macro_rules! cases_in_real_time {
    ($fabric:expr) => {
        $crate::tests_of! { $fabric;
            blocking by blocking:
                borrowed_puts_and_gets_come_back_at_every_size
                a_borrowed_get_writes_its_buffer_and_no_more
                blocking_atomics_return_what_was_there
                borrowed_lists_are_scattered_and_gathered
                a_request_can_be_waited_for_in_every_way
                a_signal_wait_sleeps_until_it_is_woken
                a_blocking_wait_expires_at_its_deadline
                blocking_calls_work_on_a_thread_of_a_runtime;
            threads by blocking:
                eight_threads_on_one_region_lose_nothing
                who_sees_a_signal_on_another_thread_sees_every_put_before_it
                adds_of_four_threads_to_a_signal_are_all_counted
                accumulates_of_threads_and_contexts_are_exact
                threads_that_open_and_drop_one_region_do_not_disturb_each_other;
            usage by case_alone:
                registering_ten_thousand_regions_again_and_again_stays_flat
                opening_and_dropping_regions_leaves_nothing_open;
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_case_is_missing_in_the_list() {
        let list = include_str!("cases.rs");
        let topics = [
            include_str!("conformance/accumulate.rs"),
            include_str!("conformance/atomics.rs"),
            include_str!("conformance/bad_input.rs"),
            include_str!("conformance/blocking.rs"),
            include_str!("conformance/completion.rs"),
            include_str!("conformance/identity.rs"),
            include_str!("conformance/lifetime.rs"),
            include_str!("conformance/lists.rs"),
            include_str!("conformance/put_get.rs"),
            include_str!("conformance/rights.rs"),
            include_str!("conformance/signals.rs"),
            include_str!("conformance/sizes.rs"),
            include_str!("conformance/threads.rs"),
            include_str!("conformance/usage.rs"),
        ];
        let mut count = 0;
        for line in topics.iter().flat_map(|text| text.lines()) {
            let Some(case) = line.strip_prefix("pub async fn ").or_else(|| line.strip_prefix("pub fn "))
            else {
                continue;
            };
            let name = case.split('(').next().unwrap();
            let listed = list.split([' ', '\n', ';']).any(|word| word == name);
            assert!(listed, "{name} is in no list");
            count += 1;
        }
        assert!(count > 70, "{count} cases were found");
    }
}
