//! The conformance suite of the access layer: written once, run on every transport.
//!
//! A new transport is an implementation of [`fabric::Fabric`] and one more entry in the list at the end. What needs a
//! virtual clock or real threads and sockets is in `simulated` and `sockets`.

mod completions;
mod connecting;
mod ending;
mod fabric;
mod flushing;
mod messages;
mod pair;
mod regions;
mod simulated;
mod sockets;
#[path = "../support/mod.rs"]
mod support;
mod transfers;

/// Makes a test of every function of the suite for every transport.
macro_rules! suite {
    ([$($transport:ident: $fabric:ident),+] $tests:tt) => {
        $(mod $transport { suite!(@on $fabric $tests); })+
    };
    (@on $fabric:ident { $($module:ident { $($test:ident)+ })+ }) => {
        $(mod $module {
            $(#[test] fn $test() { crate::$module::$test::<crate::fabric::$fabric>(); })+
        })+
    };
}

suite! {
    [tcp: Tcp, sim: Sim]
    {
        connecting {
            private_data_goes_both_ways
            private_data_is_bounded
            a_rejection_says_why
            where_nobody_listens_it_says_so
            a_request_that_nobody_takes_times_out
            waiting_for_requests_ends_in_time
            a_port_is_taken_once
            settings_are_agreed_on
            checksums_change_nothing_visible
            events_come_once_and_in_order
            one_listener_serves_many
        }
        regions {
            every_right_is_checked_when_posting
            the_target_checks_rights_itself
            bounds_are_checked_when_posting
            the_target_checks_bounds_itself
            nothing_is_a_length_too
            a_damaged_descriptor_is_noticed
            a_key_opens_one_region_of_one_peer
            a_deregistered_region_is_gone
            memory_lives_as_long_as_an_operation
            local_ranges_are_checked
        }
        transfers {
            bytes_arrive_at_every_size
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
            a_message_must_fit
            a_message_has_a_longest_length
            a_slow_receiver_is_not_overrun
            what_waits_for_room_keeps_its_place
            receives_come_back_when_the_connection_ends
        }
        completions {
            they_come_in_order_with_their_context
            silent_operations_complete_only_in_failure
            many_are_polled_at_once
            waiting_ends_in_time
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
            handles_may_be_dropped_in_any_order
            a_pending_connection_may_be_dropped
            a_killed_target_leaves_outcomes_unknown
            one_connection_lost_harms_no_other
            an_idle_connection_stays
        }
    }
}
