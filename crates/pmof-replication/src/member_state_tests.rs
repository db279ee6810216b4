use std::{collections::BTreeSet, format, panic::catch_unwind, string::String, vec::Vec};

use crate::member_state::{Event, Link, MemberCell, MemberState, Transition};

/// Each event, and what it makes of each state, in the order of [`MemberState::ALL`]: `-` where it changes nothing, `!` where it is a fault.
const TABLE: &str = "
                InSync  Lost    Removed Behind  BSlow   BLost   Witness WSlow   WLost   Cand    CSlow   CLost   WCand   WCSlow  WCLost
MadeMember      !       !       -       !       !       !       !       !       !       Behind  BSlow   BLost   Witness WSlow   WLost
LeftBehind      BSlow   -       -       BSlow   -       -       WSlow   -       -       CSlow   -       -       WCSlow  -       -
Admitted        !       -       -       -       Behind  -       -       Witness -       -       Cand    -       -       WCand   -
CaughtUp        !       -       -       InSync  -       -       !       !       !       -       -       -       !       !       !
Lost            Lost    -       -       BLost   BLost   -       WLost   WLost   -       CLost   CLost   -       WCLost  WCLost  -
Removed         Removed Removed -       Removed Removed Removed Removed Removed Removed Removed Removed Removed Removed Removed Removed
BackWithData    !       Behind  !       !       !       Behind  !       !       Behind  !       !       Behind  !       !       Behind
BackAsWitness   !       Witness !       !       !       Witness !       !       Witness !       !       Witness !       !       Witness
";

fn short(state: MemberState) -> String {
    let (kind, link) = match state {
        MemberState::InSync => return String::from("InSync"),
        MemberState::Lost => return String::from("Lost"),
        MemberState::Removed => return String::from("Removed"),
        MemberState::Behind(link) => (["Behind", "B"], link),
        MemberState::Witness(link) => (["Witness", "W"], link),
        MemberState::Candidate(link) => (["Cand", "C"], link),
        MemberState::WitnessCandidate(link) => (["WCand", "WC"], link),
    };
    match link {
        Link::Connected => String::from(kind[0]),
        link => format!("{}{link:?}", kind[1]),
    }
}

/// What the table above has for an event in a state.
fn expected(table: &str, state: MemberState, event: Event) -> Option<String> {
    let mut rows = table.trim().lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let column = rows.next().unwrap().iter().position(|name| *name == short(state)).unwrap();
    let row = rows.find(|row| row[0] == format!("{event:?}")).unwrap();
    assert_eq!(row.len(), 1 + MemberState::ALL.len());
    match row[1 + column] {
        "!" => None,
        "-" => Some(short(state)),
        to => Some(String::from(to)),
    }
}

/// The states and events in which the code and a table are not the same.
fn unlike(table: &str) -> Vec<(MemberState, Event)> {
    let all = MemberState::ALL.into_iter().flat_map(|state| Event::ALL.map(|event| (state, event)));
    all.filter(|(state, event)| state.after(*event).map(short) != expected(table, *state, *event)).collect()
}

#[test]
fn each_event_in_each_state() {
    assert_eq!(unlike(TABLE), []);
    // One different row is noticed.
    let other = TABLE
        .replace("CaughtUp        !       -       -       InSync", "CaughtUp        !       -       -       -     ");
    assert_eq!(unlike(&other), [(MemberState::Behind(Link::Connected), Event::CaughtUp)]);
}

#[test]
fn what_an_event_leaves_is_asserted() {
    for event in Event::ALL {
        let reached = MemberState::ALL.into_iter().filter_map(|state| state.after(event));
        assert!({ reached }.all(|state| event.has_led_to(state)), "{event:?}");
        assert!(!MemberState::ALL.into_iter().all(|state| event.has_led_to(state)), "{event:?} promises nothing");
    }
}

#[test]
fn a_code_is_one_state() {
    let codes: BTreeSet<_> = MemberState::ALL.iter().map(|state| state.code()).collect();
    assert_eq!(codes.len(), MemberState::ALL.len());
    assert!(MemberState::ALL.iter().all(|state| MemberState::of_code(state.code()) == *state));
}

#[test]
fn predicates_of_each_state() {
    let those = |is: fn(MemberState) -> bool| {
        MemberState::ALL.into_iter().filter(|state| is(*state)).map(short).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(those(MemberState::is_in_sync), "InSync");
    assert_eq!(those(MemberState::is_removed), "Removed");
    assert_eq!(those(MemberState::is_lost), "Lost BLost WLost CLost WCLost");
    assert_eq!(those(MemberState::is_slow), "BSlow WSlow CSlow WCSlow");
    assert_eq!(those(MemberState::is_prompt), "InSync Behind Witness Cand WCand");
    assert_eq!(those(MemberState::is_connected), "InSync Behind BSlow Witness WSlow Cand CSlow WCand WCSlow");
    assert_eq!(those(MemberState::is_behind), "Behind BSlow Witness WSlow Cand CSlow WCand WCSlow");
    assert_eq!(those(MemberState::is_candidate), "Cand CSlow CLost WCand WCSlow WCLost");
    assert_eq!(those(MemberState::is_witness), "Witness WSlow WLost WCand WCSlow WCLost");
    assert_eq!(those(MemberState::is_data_member), "InSync Lost Behind BSlow BLost");
    assert_eq!(those(MemberState::has_data), "InSync Lost Behind BSlow BLost Cand CSlow CLost");
    assert_eq!(those(MemberState::is_well), "InSync Witness WCand");
}

#[test]
fn a_cell_takes_what_the_table_has() {
    for state in MemberState::ALL {
        for event in Event::ALL {
            let cell = MemberCell::new(state);
            let Some(to) = state.after(event) else {
                assert!(catch_unwind(|| MemberCell::new(state).take(event)).is_err(), "{state:?} {event:?}");
                assert!(catch_unwind(|| MemberCell::new(state).succeeded_by(event)).is_err());
                continue;
            };
            assert_eq!(cell.take(event), Transition { from: state, to });
            assert_eq!(cell.get(), to);
            assert_eq!(MemberCell::new(state).succeeded_by(event).get(), to);
        }
    }
}
