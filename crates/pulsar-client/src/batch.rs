//! The messages of an entry: one, or a batch of messages in sequence, each with its metadata.

use std::io::Read;

use bytes::{Buf, Bytes};
use prost::Message as _;
use pulsar::message::proto::command_ack::ValidationError;
use pulsar::message::proto::{CompressionType, SingleMessageMetadata};
use ruzstd::decoding::errors::FrameDecoderError::{DictNotProvided, WindowSizeTooBig};

use crate::frame::{Damage, Entry};

/// The limit of an unpacked entry.
const LARGEST: usize = 64 << 20;

/// The limit of messages in a damaged entry.
const MOST: u32 = 1 << 20;

/// A message of an entry.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    /// The payload.
    pub payload: &'a [u8],
    /// Its index and metadata in a batch; None for a single message, which uses the entry's metadata.
    pub single: Option<(usize, SingleMessageMetadata)>,
}

/// Calls a function for each message of an entry that is not acknowledged, in order, and returns their number. If
/// the entry is damaged, some messages may have been handled before.
pub fn each(entry: &Entry, ack_set: &[i64], mut hand_on: impl FnMut(&[u8])) -> Result<u64, Damage> {
    let payload = unpacked(entry)?;
    let mut count = 0;
    for message in Messages::new(entry.metadata.num_messages_in_batch, &payload, ack_set) {
        hand_on(message?.payload);
        count += 1;
    }
    Ok(count)
}

/// The messages of an unpacked payload that are not acknowledged. It ends after an error.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
    ack_set: &'a [i64],
    /// The number of messages in the batch; None for a single message.
    count: Option<i32>,
    index: usize,
}

impl<'a> Messages<'a> {
    /// The messages of a payload with this number of messages in its batch.
    pub fn new(count: Option<i32>, payload: &'a [u8], ack_set: &'a [i64]) -> Self {
        Self { rest: payload, ack_set, count, index: 0 }
    }

    fn next_of_batch(&mut self, count: i32) -> Result<Option<Message<'a>>, Damage> {
        let broken = || Damage::corrupt(ValidationError::BatchDeSerializeError, "its batch is broken");
        let count = usize::try_from(count).map_err(|_| broken())?;
        while self.index < count {
            let length = self.rest.try_get_u32().ok().and_then(|length| usize::try_from(length).ok());
            let split = length.and_then(|length| self.rest.split_at_checked(length));
            let (metadata, rest) = split.ok_or_else(broken)?;
            let metadata = SingleMessageMetadata::decode(metadata).map_err(|_| broken())?;
            let size = usize::try_from(metadata.payload_size).ok();
            let (payload, rest) = size.and_then(|size| rest.split_at_checked(size)).ok_or_else(broken)?;
            self.rest = rest;
            let index = self.index;
            self.index += 1;
            if is_kept(self.ack_set, index) && metadata.compacted_out != Some(true) {
                return Ok(Some(Message { payload, single: Some((index, metadata)) }));
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Damage>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match self.count {
            Some(count) => self.next_of_batch(count).transpose(),
            None if is_kept(self.ack_set, 0) => Some(Ok(Message { payload: self.rest, single: None })),
            None => None,
        };
        if self.count.is_none() || next.as_ref().is_some_and(Result::is_err) {
            self.count = Some(0);
        }
        next
    }
}

/// Whether a message of a batch is not acknowledged. `ack_set` has one bit for each message, the lowest
/// first; an empty set means none is acknowledged.
pub fn is_kept(ack_set: &[i64], index: usize) -> bool {
    ack_set.is_empty() || ack_set.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
}

/// How many messages the broker counts for an entry: the unacknowledged ones of its batch, or one without a
/// batch. `count` is the size of the batch in the entry's metadata.
pub fn permits(count: Option<i32>, ack_set: &[i64]) -> u32 {
    let Some(count) = count.and_then(|count| u32::try_from(count).ok()) else { return 1 };
    if ack_set.is_empty() {
        return count;
    }
    let whole = usize::try_from(count / 64).unwrap_or(usize::MAX);
    let beginning = (1_u64 << (count % 64)) - 1;
    let rest = ack_set.get(whole).map_or(0, |word| (word.cast_unsigned() & beginning).count_ones());
    ack_set.iter().take(whole).map(|word| word.count_ones()).sum::<u32>() + rest
}

/// As [`permits`], also for an entry that cannot be decoded. Its number is not reliable, so it counts as at least a
/// `queue` of messages: too few would exhaust the permits, while too many need no memory above the limit.
pub fn permits_of(entry: &Result<Entry, Damage>, ack_set: &[i64], queue: u32) -> u32 {
    match entry {
        Ok(entry) => permits(entry.metadata.num_messages_in_batch, ack_set),
        Err(damage) => permits(damage.batched, ack_set).min(MOST).max(queue),
    }
}

/// The unpacked payload of an entry.
pub fn unpacked(entry: &Entry) -> Result<Bytes, Damage> {
    let metadata = &entry.metadata;
    if !metadata.encryption_keys.is_empty() {
        return Err(Damage::unsupported("it is encrypted"));
    }
    if metadata.num_chunks_from_msg.is_some_and(|chunks| chunks > 1) {
        return Err(Damage::unsupported("it is a chunk of a message"));
    }
    let compression = CompressionType::try_from(entry.metadata.compression.unwrap_or_default())
        .map_err(|_| Damage::unsupported("its compression type is unknown"))?;
    if compression == CompressionType::None {
        return Ok(entry.payload.clone());
    }
    let size = usize::try_from(entry.metadata.uncompressed_size.unwrap_or_default()).unwrap_or(usize::MAX);
    if size > LARGEST {
        return Err(Damage::unsupported(format!("its unpacked size of {size} bytes is too large")));
    }
    let packed = entry.payload.as_ref();
    let unpacked = match compression {
        CompressionType::None => None,
        CompressionType::Lz4 => lz4_flex::block::decompress(packed, size).ok(),
        CompressionType::Zlib => read(flate2::read::ZlibDecoder::new(packed), size),
        CompressionType::Zstd => {
            match ruzstd::decoding::StreamingDecoder::new(packed) {
                Ok(decoder) => read(decoder, size),
                // Another client may know the dictionary, or a larger window.
                Err(error @ (DictNotProvided { .. } | WindowSizeTooBig { .. })) => {
                    return Err(Damage::unsupported(format!("it cannot be unpacked ({error})")));
                }
                Err(_) => None,
            }
        }
        CompressionType::Snappy => (snap::raw::decompress_len(packed) == Ok(size))
            .then(|| snap::raw::Decoder::new().decompress_vec(packed).ok())
            .flatten(),
    };
    match unpacked {
        Some(unpacked) if unpacked.len() == size => Ok(unpacked.into()),
        _ => Err(Damage::corrupt(
            ValidationError::DecompressionError,
            format!("it cannot be unpacked ({})", compression.as_str_name()),
        )),
    }
}

/// Reads exactly this number of bytes, because Java's zlib streams are flushed there without an end.
fn read(decoder: impl Read, size: usize) -> Option<Vec<u8>> {
    let mut unpacked = Vec::new();
    decoder.take(u64::try_from(size).ok()?).read_to_end(&mut unpacked).ok()?;
    Some(unpacked)
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};
    use proptest::prelude::*;
    use pulsar::message::Metadata;
    use pulsar::message::proto::EncryptionKeys;

    use super::*;

    fn messages(entry: &Entry, ack_set: &[i64]) -> Result<Vec<String>, Damage> {
        let mut messages = Vec::new();
        let count =
            each(entry, ack_set, |payload| messages.push(String::from_utf8_lossy(payload).into_owned()))?;
        assert_eq!(usize::try_from(count).unwrap(), messages.len());
        Ok(messages)
    }

    fn packed(messages: &[(&str, bool)]) -> Entry {
        let mut payload = BytesMut::new();
        for (message, compacted_out) in messages {
            let metadata = SingleMessageMetadata {
                payload_size: i32::try_from(message.len()).unwrap(),
                compacted_out: Some(*compacted_out),
                partition_key: Some("key".to_owned()),
                ..SingleMessageMetadata::default()
            };
            payload.put_u32(u32::try_from(metadata.encoded_len()).unwrap());
            metadata.encode(&mut payload).unwrap();
            payload.put_slice(message.as_bytes());
        }
        let count = i32::try_from(messages.len()).unwrap();
        let metadata = Metadata { num_messages_in_batch: Some(count), ..Metadata::default() };
        Entry { metadata, payload: payload.freeze() }
    }

    fn alone(metadata: Metadata) -> Entry {
        Entry { metadata, payload: Bytes::from_static(b"alone") }
    }

    #[test]
    fn splits_a_batch() {
        let entry = packed(&[("a", false), ("", false), ("gone", true), ("c", false)]);
        assert_eq!(messages(&entry, &[]).unwrap(), ["a", "", "c"]);
        assert_eq!(messages(&entry, &[-2]).unwrap(), ["", "c"]);
    }

    #[test]
    fn reads_a_single_message() {
        assert_eq!(messages(&alone(Metadata::default()), &[]).unwrap(), ["alone"]);
    }

    #[test]
    fn reports_unreadable_entries() {
        let reason = |entry: &Entry| messages(entry, &[]).unwrap_err().to_string();
        let encrypted = Metadata { encryption_keys: vec![EncryptionKeys::default()], ..Metadata::default() };
        assert!(reason(&alone(encrypted)).contains("encrypted"));
        let chunk = Metadata { num_chunks_from_msg: Some(2), ..Metadata::default() };
        assert!(reason(&alone(chunk)).contains("chunk"));
        let unknown = Metadata { compression: Some(99), ..Metadata::default() };
        assert!(reason(&alone(unknown)).contains("unknown"));
        let count = Metadata { num_messages_in_batch: Some(2), ..Metadata::default() };
        assert!(reason(&Entry { metadata: count, ..packed(&[("a", false)]) }).contains("broken"));
    }

    #[test]
    fn the_ack_set_has_a_bit_for_each_open_message() {
        assert!(is_kept(&[], 1_000));
        assert!(!is_kept(&[0b10], 0));
        assert!(is_kept(&[0b10], 1));
        assert!(is_kept(&[0, -1], 64));
        assert!(!is_kept(&[-1], 64));
    }

    #[test]
    fn counts_the_messages_that_the_broker_sends() {
        assert_eq!(permits(None, &[]), 1);
        assert_eq!(permits(Some(-1), &[]), 1);
        assert_eq!(permits(Some(300), &[]), 300);
        // Two of three are acknowledged; bits after the batch do not count.
        assert_eq!(permits(Some(3), &[0b100]), 1);
        assert_eq!(permits(Some(3), &[-1]), 3);
        assert_eq!(permits(Some(64), &[-1, -1]), 64);
        assert_eq!(permits(Some(i32::MAX), &[0, -1, 1]), 65);
    }

    #[test]
    fn a_damaged_entry_returns_at_least_a_queue_of_permits() {
        let damaged =
            |batched| Err(Damage { batched, ..Damage::corrupt(ValidationError::ChecksumMismatch, "") });
        for (entry, permits) in [
            (damaged(None), 100),
            (damaged(Some(7)), 100),
            (damaged(Some(1_000)), 1_000),
            (damaged(Some(i32::MAX)), MOST),
            (Ok(packed(&[("a", false), ("b", false)])), 2),
        ] {
            assert_eq!(permits_of(&entry, &[], 100), permits, "{entry:?}");
        }
    }

    /// Compressed entries as producers send them, from encoders or as literals.
    fn compressed(kind: CompressionType, payload: &[u8], size: usize) -> Entry {
        let metadata = Metadata {
            compression: Some(kind as i32),
            uncompressed_size: Some(u32::try_from(size).unwrap()),
            ..Metadata::default()
        };
        Entry { metadata, payload: Bytes::copy_from_slice(payload) }
    }

    #[test]
    fn unpacks_compressed_entries() {
        let text = "hello ".repeat(100);
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut zlib, text.as_bytes()).unwrap();
        let snappy = snap::raw::Encoder::new().compress_vec(text.as_bytes()).unwrap();
        let zstd =
            ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        // Six literals, a match of 589 bytes, and five literals: a block as in the description of LZ4.
        let mut lz4 = vec![0x6f];
        lz4.extend_from_slice(b"hello ");
        lz4.extend_from_slice(&[6, 0, 255, 255, 60, 0x50]);
        lz4.extend_from_slice(b"ello ");
        for (kind, packed) in [
            (CompressionType::Zlib, zlib.finish().unwrap()),
            (CompressionType::Snappy, snappy),
            (CompressionType::Zstd, zstd),
            (CompressionType::Lz4, lz4),
        ] {
            let entry = compressed(kind, &packed, text.len());
            assert_eq!(messages(&entry, &[]), Ok(vec![text.clone()]), "{kind:?}");
            // A wrong size and garbage are rejected.
            for (packed, size) in [(&packed[..], 601), (&packed[..], LARGEST + 1), (&b"nonsense"[..], 600)] {
                let damage = messages(&compressed(kind, packed, size), &[]).unwrap_err().to_string();
                assert!(damage.contains("unpacked"), "{kind:?}: {damage}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_compressed_bytes_cause_a_panic(bytes: Vec<u8>, kind in 1_i32..5, size in 0_u32..10_000) {
            let metadata = Metadata {
                compression: Some(kind),
                uncompressed_size: Some(size),
                ..Metadata::default()
            };
            let _ = messages(&Entry { metadata, payload: Bytes::from(bytes) }, &[]);
        }

        #[test]
        fn counts_the_kept_messages(
            count in 0_i32..300,
            ack_set in prop::collection::vec(any::<i64>(), 0..6),
        ) {
            let kept = (0..usize::try_from(count).unwrap()).filter(|index| is_kept(&ack_set, *index)).count();
            prop_assert_eq!(permits(Some(count), &ack_set), u32::try_from(kept).unwrap());
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes: Vec<u8>, count: i32) {
            let _ = Messages::new(Some(count), &bytes, &[]).count();
        }
    }
}
