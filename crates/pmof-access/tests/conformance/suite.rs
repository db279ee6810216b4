//! The list of what the suite checks.

/// Makes a test of every function of the suite for every transport.
macro_rules! suite {
    (@all [$($transport:ident: $fabric:ident),+] $tests:tt) => {
        $(mod $transport { crate::suite::suite!(@on $fabric $tests); })+
    };
    (@on $fabric:ident { $($module:ident { $($test:ident)+ })+ }) => {
        $(mod $module {
            $(#[test] fn $test() {
                if <crate::fabrics::$fabric as crate::fabric::Fabric>::is_there() {
                    crate::$module::$test::<crate::fabrics::$fabric>();
                }
            })+
        })+
    };
    ([$($transport:ident: $fabric:ident),+]) => {
        crate::suite::suite! { @all [$($transport: $fabric),+] {
            connecting {
                private_data_goes_both_ways
                private_data_is_bounded
                a_rejection_says_why
                where_nobody_listens_it_says_so
                early_receives_come_back_when_there_is_no_connection
                shared_receives_stay_when_there_is_no_connection
                a_request_that_nobody_takes_times_out
                waiting_for_requests_ends_in_time
                a_port_is_taken_once
                settings_are_agreed_on
                checksums_change_nothing_visible
                events_come_once_and_in_order
                one_listener_serves_many
                connecting_need_not_be_waited_for
                a_listener_is_waited_for_by_its_descriptor
                requests_that_come_together_show_until_the_last_is_taken
            }
            regions {
                every_right_is_checked_when_posting
                the_target_checks_rights_itself
                bounds_are_checked_when_posting
                the_target_checks_bounds_itself
                zero_is_a_length_too
                nothing_needs_no_region
                a_short_descriptor_leads_to_its_region
                a_damaged_descriptor_is_noticed
                a_key_opens_one_region_of_one_peer
                a_key_may_be_bound_to_one_connection
                what_is_not_bound_is_shared_by_connections
                a_deregistered_region_is_gone
                a_fence_lets_nothing_more_through
                memory_lives_as_long_as_an_operation
                local_ranges_are_checked
            }
            transfers {
                bytes_arrive_at_every_size
                what_is_moved_is_counted
                slices_arrive_at_every_size
                sixty_four_mebibytes_arrive
                sizes_mix_in_one_stream
                both_sides_may_write
                operations_take_effect_in_order
                writes_with_immediate_are_announced
                atomic_operations_do_what_they_say
                atomic_operations_are_aligned
                a_refused_operation_ends_the_connection
            }
            flushing {
                anonymous_memory_survives_nothing
                tmpfs_survives_its_process
                what_was_declared_is_said_to_be
                a_file_survives_loss_of_power
                the_right_to_flush_has_two_strengths
                the_target_believes_no_forged_promise
                a_failing_medium_is_never_vouched_for
            }
            messages {
                messages_find_their_receives
                slices_are_sent_too
                both_sides_may_send
                an_answer_comes_behind_the_outcome_of_its_question
                a_message_must_fit
                a_message_has_a_longest_length
                a_slow_receiver_is_not_overrun
                what_waits_for_room_keeps_its_place
                receives_come_back_when_the_connection_ends
                receives_have_a_queue_of_their_own
                either_queue_drives
                threads_wait_on_both_queues
                a_receive_queue_is_waited_for_by_its_descriptor
                connections_share_receives
                shared_receives_go_out_in_order_of_arrival
                shared_receives_outlive_connections
                a_shared_receive_must_fit
            }
            completions {
                they_come_in_order_with_their_context
                unsignalled_operations_complete_only_in_failure
                many_are_polled_at_once
                waiting_ends_in_time
                waiting_no_time_makes_progress_too
                a_queue_is_waited_for_by_its_descriptor
                a_queue_is_assisted_while_its_caller_sleeps
                waiting_for_one_leaves_the_others
                what_is_discarded_does_not_come
                many_connections_share_a_queue_that_its_caller_drives
                many_connections_share_a_queue_that_a_thread_drives
                a_batch_goes_out_at_once
                a_held_batch_goes_out_later
                a_full_queue_says_so_and_recovers
                much_posted_at_once_is_bounded
            }
            ending {
                what_was_posted_before_closing_is_delivered
                what_was_deferred_before_closing_is_delivered
                closing_does_not_wait_for_receives
                an_end_is_reported_when_all_that_was_posted_has_its_outcome
                both_sides_may_close_at_once
                closing_waits_for_the_other_side
                handles_may_be_dropped_in_any_order
                a_pending_connection_may_be_dropped
                a_killed_target_leaves_outcomes_unknown
                one_connection_lost_harms_no_other
                an_idle_connection_stays
            }
        } }
    };
}
pub(crate) use suite;
