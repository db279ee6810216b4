//! How a replica is opened: what its file must say, and what is made durable before its opener depends on that.

use std::collections::VecDeque;

use pmof_control::{
    HEAD_4_BYTES, HEADER_BYTES, Header, HeaderError, IntentLayout, KeptRoster, OpenFor, PoolFormat, PoolState,
    ROSTER_BYTES, ROSTER_OFFSET, Roster, STATE_BYTES, STATE_OFFSET,
};

use super::{
    Machine, OpenReplica, Output, Refusal, Rules, ShippedRules, Step,
    replica::{Found, bits_of, read_map, state_numbers, written},
};

/// What the file of a replica begins with.
#[derive(Clone, Debug)]
pub struct Head {
    /// Its header.
    pub header: Header,
    /// Its state.
    pub state: PoolState,
    /// A damaged slot may have held a newer state.
    pub is_uncertain: bool,
    /// Number of the newest copy of the state.
    sequence: u64,
    /// The state is in as many copies as it should be.
    is_kept: bool,
    /// So is the header.
    is_header_kept: bool,
}

/// Reads the head of a replica.
#[derive(Debug)]
pub struct HeadReading<R = ShippedRules> {
    rules: R,
    read: Read,
}

#[derive(Debug)]
enum Read {
    Nothing,
    /// The state page of a former format is read.
    Header(Header),
    /// All copies of format 4 are read: the first header says so, or is damaged.
    Copies(Result<Header, HeaderError>),
    Ended(Result<Head, HeaderError>),
}

impl<R: Rules> HeadReading<R> {
    /// Nothing is read yet.
    pub fn new(rules: R) -> Self {
        Self { rules, read: Read::Nothing }
    }

    fn head(&self, header: Header, is_header_kept: bool, states: &[u8]) -> Result<Head, HeaderError> {
        let (state, sequence, is_uncertain) = PoolState::read_uncertain(header.format, header.replica_count, states)?;
        let is_kept = self.rules.is_kept(header.format, states);
        Ok(Head { header, state, is_uncertain, sequence, is_kept, is_header_kept })
    }

    /// `first`: what the file begins with. A file that is no pool of format 4 may be shorter than what that keeps.
    fn newest(&self, first: &Result<Header, HeaderError>, begin: &[u8]) -> Result<Head, HeaderError> {
        let (header, is_kept) = match Header::of_file(begin) {
            Ok(newest) => newest,
            Err(error) => return Err(first.as_ref().err().cloned().unwrap_or(error)),
        };
        let len_bytes = header.format.state_bytes();
        let places = header.format.state_places().iter();
        let states: Option<Vec<_>> = places.map(|place| begin.get(*place as usize..)?.get(..len_bytes)).collect();
        self.head(header, is_kept, &states.unwrap_or_default().concat())
    }
}

impl<R: Rules> Machine for HeadReading<R> {
    type Output = Output;
    type Input = Vec<u8>;
    type Outcome = Head;

    fn step(&mut self) -> Step<Output, Head> {
        match &self.read {
            Read::Nothing => Step::Perform(Output::Read { offset: 0, len_bytes: HEADER_BYTES }),
            Read::Header(_) => Step::Perform(Output::Read { offset: STATE_OFFSET, len_bytes: STATE_BYTES }),
            Read::Copies(_) => Step::Perform(Output::ReadBegin(HEAD_4_BYTES as usize)),
            Read::Ended(head) => Step::Done(head.clone().map_err(Refusal::Header)),
        }
    }

    fn performed(&mut self, read: Vec<u8>) {
        self.read = match &self.read {
            Read::Nothing => {
                assert_eq!(read.len(), HEADER_BYTES, "the whole header is read");
                match self.rules.header(&read) {
                    Ok(header) => match header.format {
                        // It has no state page.
                        PoolFormat::One { .. } => Read::Ended(self.head(header, true, &[])),
                        PoolFormat::Two | PoolFormat::Three => Read::Header(header),
                        PoolFormat::Four => Read::Copies(Ok(header)),
                    },
                    Err(error @ (HeaderError::NewerVersion { .. } | HeaderError::UnknownFeature { .. })) => {
                        Read::Ended(Err(error))
                    }
                    damaged @ Err(_) => Read::Copies(damaged),
                }
            }
            Read::Header(header) => Read::Ended(self.head(header.clone(), true, &read)),
            Read::Copies(first) => Read::Ended(self.newest(first, &read)),
            Read::Ended(_) => panic!("the driver performed what it was not told"),
        };
    }
}

/// Opens a replica.
#[derive(Debug)]
pub struct Opening<R = ShippedRules> {
    access: OpenFor,
    may_be_older: bool,
    rules: R,
    phase: Phase<R>,
    /// What is performed before the phase goes on.
    outputs: VecDeque<Output>,
    awaited: Option<Awaited>,
}

#[derive(Debug)]
enum Phase<R> {
    /// Before and after the head is made durable.
    Head {
        reading: HeadReading<R>,
        is_settled: bool,
    },
    /// The map of write intent is read.
    Map(Head),
    /// The roster is read.
    Roster(Head),
    Ended(Result<Found, Refusal>),
}

/// What the driver performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Head,
    First,
}

impl<R: Rules> Opening<R> {
    /// `may_be_older`: a state that may not be the newest is taken all the same.
    pub fn new(access: OpenFor, may_be_older: bool, rules: R) -> Self {
        let phase = Phase::Head { reading: HeadReading::new(rules), is_settled: false };
        Self { access, may_be_older, rules, phase, outputs: VecDeque::new(), awaited: None }
    }

    /// What comes after the head.
    fn after_head(&mut self, mut head: Head, is_settled: bool) -> Result<Phase<R>, Refusal> {
        if head.is_uncertain && !self.may_be_older {
            return Err(Refusal::Header(HeaderError::UncertainState));
        }
        let is_writer = self.access == OpenFor::Write;
        if is_writer && !head.header.format.is_writable() {
            return Err(Refusal::OldFormat(head.header.format.major()));
        }
        if let Some(unknown) = head.header.layout.unknown_to_writers().filter(|_| is_writer) {
            let (kind, version) = (unknown.kind, unknown.version);
            return Err(Refusal::Header(HeaderError::UnknownExtension { kind, version }));
        }
        self.outputs.push_back(Output::CheckLevel);
        if is_writer && !is_settled {
            // Before anything is moved, which takes as long as a copy of the file, it is known that it can be opened.
            self.outputs.extend([Output::LeaveToFormerWriters, Output::SyncName, Output::SettleHead]);
            return Ok(Phase::Head { reading: HeadReading::new(self.rules), is_settled: true });
        }
        if is_writer && !head.is_header_kept {
            // The newest one as it is: what is overwritten first is damaged, older or the same.
            self.outputs.extend(written(head.header.steps()));
        }
        // A state that may be an older one is so until its writer begins an epoch.
        if is_writer && !head.is_uncertain && !head.is_kept {
            let steps = self.rules.state_steps(&head.state, head.header.format, head.sequence + 1);
            head.sequence += state_numbers(head.header.format, &steps);
            self.outputs.extend(written(steps));
        }
        match (head.state.is_open, is_writer) {
            (true, true) => {
                self.outputs.push_back(read_map(&head.header));
                return Ok(Phase::Map(head));
            }
            (true, false) => self.outputs.push_back(Output::SettleForReader),
            (false, _) => {}
        }
        self.before_roster(head)
    }

    fn before_roster(&mut self, head: Head) -> Result<Phase<R>, Refusal> {
        match head.header.format {
            // Former formats have none.
            PoolFormat::One { .. } | PoolFormat::Two => {
                return self.with_roster(head, &vec![0; ROSTER_BYTES]).map(|found| Phase::Ended(Ok(found)));
            }
            PoolFormat::Three => {
                self.outputs.push_back(Output::Read { offset: ROSTER_OFFSET, len_bytes: ROSTER_BYTES });
            }
            PoolFormat::Four => self.outputs.push_back(Output::ReadBegin(HEAD_4_BYTES as usize)),
        }
        Ok(Phase::Roster(head))
    }

    /// Before a writer depends on the roster, it is in all copies: a crash, a damaged copy or an earlier program may have left it in fewer.
    fn with_roster(&mut self, head: Head, copies: &[u8]) -> Result<Found, Refusal> {
        let Head { header, state, sequence, .. } = head;
        let kept = Roster::read_copies(header.format, header.replica_count, copies).map_err(Refusal::Header)?;
        let KeptRoster { roster, sequence: mut roster_sequence, is_in_all_copies } = kept;
        if self.access == OpenFor::Write && roster_sequence > 0 && !is_in_all_copies {
            // What was read can be written.
            let steps = roster.steps(header.format, roster_sequence + 1).unwrap_or_default();
            roster_sequence += state_numbers(header.format, &steps);
            self.outputs.extend(written(steps));
        }
        Ok(Found { header, state, sequence, access: self.access, roster, roster_sequence })
    }
}

impl<R: Rules> Machine for Opening<R> {
    type Output = Output;
    type Input = Vec<u8>;
    type Outcome = OpenReplica<R>;

    fn step(&mut self) -> Step<Output, OpenReplica<R>> {
        assert!(self.awaited.is_none(), "an output that failed or is being performed is not followed by others");
        loop {
            if let Some(output) = self.outputs.pop_front() {
                self.awaited = Some(Awaited::First);
                return Step::Perform(output);
            }
            match &mut self.phase {
                Phase::Head { reading, is_settled } => {
                    let (step, is_settled) = (reading.step(), *is_settled);
                    let head = match step {
                        Step::Perform(output) => {
                            self.awaited = Some(Awaited::Head);
                            return Step::Perform(output);
                        }
                        Step::Done(head) => head,
                    };
                    let next = head.and_then(|head| self.after_head(head, is_settled));
                    self.phase = next.unwrap_or_else(|refused| Phase::Ended(Err(refused)));
                }
                Phase::Ended(found) => {
                    let found = found.clone();
                    return Step::Done(found.map(|found| OpenReplica::found(found, self.rules)));
                }
                Phase::Map(_) | Phase::Roster(_) => panic!("what is read is taken in when it is there"),
            }
        }
    }

    fn performed(&mut self, read: Vec<u8>) {
        let awaited = self.awaited.take().expect("the driver performed what it was not told");
        if let (Awaited::Head, Phase::Head { reading, .. }) = (awaited, &mut self.phase) {
            return reading.performed(read);
        }
        if !self.outputs.is_empty() {
            return;
        }
        let next = match &self.phase {
            Phase::Map(head) => {
                let head = head.clone();
                // What may have been written since it was durable last; the pages before the data are settled already.
                let ranges = IntentLayout::new(head.header.size_bytes).ranges(&bits_of(&read));
                self.outputs.push_back(Output::SettleData(ranges));
                self.before_roster(head)
            }
            Phase::Roster(head) => {
                let head = head.clone();
                let places = head.header.format.roster_places();
                let copies = if head.header.format == PoolFormat::Four {
                    let len_bytes = head.header.format.roster_bytes();
                    places
                        .iter()
                        .filter_map(|place| read.get(*place as usize..)?.get(..len_bytes))
                        .collect::<Vec<_>>()
                        .concat()
                } else {
                    read
                };
                assert_eq!(copies.len(), places.len() * head.header.format.roster_bytes(), "the whole roster is read");
                self.with_roster(head, &copies).map(|found| Phase::Ended(Ok(found)))
            }
            Phase::Head { .. } | Phase::Ended(_) => return,
        };
        self.phase = next.unwrap_or_else(|refused| Phase::Ended(Err(refused)));
    }
}
