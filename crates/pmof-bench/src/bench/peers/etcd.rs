//! A client of etcd: `Put` of its version 3 interface, by gRPC over one HTTP/2 connection that stays open.

use anyhow::{Context as _, Result, bail, ensure};

use super::{http2::Http2, put::Put};

const PUT: &str = "/etcdserverpb.KV/Put";

/// Before each message of gRPC: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// One value at a time goes to a key for each place.
#[derive(Debug)]
pub(super) struct EtcdClient {
    http: Http2,
    value: Vec<u8>,
    request: Vec<u8>,
}

impl EtcdClient {
    /// Puts a first value, which waits for a leader.
    pub(super) fn connect(http: Http2, size_bytes: usize) -> Result<Self> {
        let mut client = Self { http, value: vec![7; size_bytes], request: Vec::new() };
        client.put(0).context("the first value")?;
        Ok(client)
    }
}

impl Put for EtcdClient {
    fn put(&mut self, place: u64) -> Result<()> {
        encode_put(&mut self.request, format!("pmof:{place:08}").as_bytes(), &self.value)?;
        let answer = self.http.call(PUT, &self.request)?;
        // A call that is refused has no message, only a status in the trailers.
        let Some((prefix, message)) = answer.split_first_chunk::<PREFIX_BYTES>() else {
            bail!("etcd refused the put: its log says why")
        };
        let [is_compressed, len_bytes @ ..] = *prefix;
        let len_bytes = len_bytes.iter().fold(0_usize, |len, byte| len << 8 | usize::from(*byte));
        ensure!(is_compressed == 0 && len_bytes == message.len(), "etcd's answer is no single message of gRPC");
        Ok(())
    }

    fn moved(&self) -> Option<[u64; 2]> {
        Some(self.http.moved())
    }
}

/// `PutRequest { key = 1, value = 2 }` of protocol buffers, behind its prefix.
fn encode_put(into: &mut Vec<u8>, key: &[u8], value: &[u8]) -> Result<()> {
    into.clear();
    into.extend([0; PREFIX_BYTES]);
    for (tag, bytes) in [(0x0a, key), (0x12, value)] {
        into.push(tag);
        put_varint(into, bytes.len() as u64);
        into.extend_from_slice(bytes);
    }
    let len_bytes = u32::try_from(into.len() - PREFIX_BYTES)?;
    for (at, shift) in [24, 16, 8, 0].into_iter().enumerate() {
        into[1 + at] = (len_bytes >> shift) as u8;
    }
    Ok(())
}

fn put_varint(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_encoded_as_protocol_buffers_say() {
        let mut bytes = vec![9; 3];
        encode_put(&mut bytes, b"key", &[5; 200]).unwrap();
        let head = [0, 0, 0, 0, 208, 0x0a, 3, b'k', b'e', b'y', 0x12, 0xc8, 0x01];
        assert_eq!(bytes[..head.len()], head);
        assert_eq!(bytes.len(), head.len() + 200);
    }
}
