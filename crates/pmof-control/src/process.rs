//! Which process an initiator is, by its own word: the private data of its connection.

use alloc::{string::String, vec, vec::Vec};
use core::fmt;

/// Bytes of a program's name, at most: what the kernel keeps of one (`TASK_COMM_LEN` less its end, `proc_pid_comm(5)`).
pub const MAX_PROGRAM_BYTES: usize = 15;

const HEAD_BYTES: usize = 12;
const VERSION: u8 = 1;
/// Where the private data says what the initiator does, a bit for each: bit 0 as in [`InitiatorProcess::raises_pages`].
const ABILITIES_OFFSET: usize = 1;
const RAISES_PAGES: u8 = 1;

/// The process that is an initiator, for people that look for who writes. The numbers are those of its own machine and namespaces. Nothing is decided by it:
/// over a network anything can be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorProcess {
    /// Its number.
    pub process_id: u32,
    /// The effective user as whom it runs.
    pub user_id: u32,
    /// The program's name, at most [`MAX_PROGRAM_BYTES`] of it; may be empty.
    pub program: String,
}

impl InitiatorProcess {
    /// As private data of a connection: version (1), what the initiator does (1: it raises pages), 2 zero bytes, process and user (`u32`, little endian), and the program's name in UTF-8.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, RAISES_PAGES, 0, 0];
        bytes.extend(self.process_id.to_le_bytes());
        bytes.extend(self.user_id.to_le_bytes());
        let fits = |end: &usize| self.program.is_char_boundary(*end);
        let len_bytes = (0..=MAX_PROGRAM_BYTES.min(self.program.len())).rev().find(fits).unwrap_or_default();
        bytes.extend(&self.program.as_bytes()[..len_bytes]);
        bytes
    }

    /// Whether the initiator with this private data has pages [raised](crate::PagesRequest::Raise) before it writes to them, as programs do that know format 4. Others may
    /// read pools that keep digests of their pages, and not write them.
    pub fn raises_pages(private_data: &[u8]) -> bool {
        let abilities = private_data.first_chunk::<HEAD_BYTES>().filter(|head| head[0] == VERSION);
        abilities.is_some_and(|head| head[ABILITIES_OFFSET] & RAISES_PAGES != 0)
    }

    /// From private data. `None` where there is none, or one of another kind. What is not for a terminal in the program's name is left out.
    pub fn decode(private_data: &[u8]) -> Option<Self> {
        let (head, program) = private_data.split_first_chunk::<HEAD_BYTES>()?;
        if head[0] != VERSION || program.len() > MAX_PROGRAM_BYTES {
            return None;
        }
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let program = String::from_utf8_lossy(program).chars().filter(|c| !c.is_control()).collect();
        Some(Self { process_id: number(4), user_id: number(8), program })
    }
}

impl fmt::Display for InitiatorProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process_id, user_id, program } = self;
        match program.as_str() {
            "" => write!(f, "process {process_id} of user {user_id}"),
            program => write!(f, "{program}, process {process_id} of user {user_id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(program: &str) -> InitiatorProcess {
        InitiatorProcess { process_id: 258, user_id: 1000, program: program.to_owned() }
    }

    #[test]
    fn a_process_is_read_as_it_was_written() {
        let bytes = process("orders").encode();
        assert!(InitiatorProcess::raises_pages(&bytes) && !InitiatorProcess::raises_pages(&bytes[..HEAD_BYTES - 1]));
        assert_eq!(bytes, b"\x01\x01\0\0\x02\x01\0\0\xe8\x03\0\0orders");
        for program in ["", "orders", "fifteen bytes !"] {
            assert_eq!(InitiatorProcess::decode(&process(program).encode()), Some(process(program)));
        }
        assert_eq!(InitiatorProcess::decode(&process("größer als fünfzehn").encode()), Some(process("größer als f")));
        assert_eq!(process("orders").to_string(), "orders, process 258 of user 1000");
        assert_eq!(process("").to_string(), "process 258 of user 1000");
    }

    #[test]
    fn what_says_nothing_of_a_process_is_none() {
        let whole = process("orders").encode();
        for len_bytes in 0..HEAD_BYTES {
            assert_eq!(InitiatorProcess::decode(&whole[..len_bytes]), None);
        }
        let newer = [&[2], &whole[1..]].concat();
        assert_eq!(InitiatorProcess::decode(&newer), None);
        assert_eq!(InitiatorProcess::decode(&[&whole[..], &[b'x'; MAX_PROGRAM_BYTES]].concat()), None);
        let escapes = [&whole[..HEAD_BYTES], b"\x1b[31m\n\xff"].concat();
        assert_eq!(InitiatorProcess::decode(&escapes).map(|process| process.program), Some("[31m\u{fffd}".to_owned()));
    }
}
