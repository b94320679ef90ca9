//! The messages of an entry: one, or those of a batch, which stand behind each other, each with metadata of its own.

use std::io::Read;

use bytes::{Buf, Bytes};
use prost::Message as _;
use pulsar::message::proto::{CompressionType, SingleMessageMetadata};

use crate::frame::{Damage, Entry};

/// No entry is larger once it is unpacked, whatever it says of itself.
const LARGEST: usize = 64 << 20;

/// A message of an entry.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// What it says.
    pub payload: &'a [u8],
    /// What it has by itself, in a batch; else all is in the entry's metadata.
    pub single: Option<&'a SingleMessageMetadata>,
}

/// Hands on an entry's messages, in their order, and says how many there were. `kept` says by a message's
/// index whether it is still wanted: the broker may know that some of a batch are acknowledged. Where the entry turns out
/// to be damaged, some may have been handed on before.
pub fn each(
    entry: &Entry,
    kept: impl Fn(usize) -> bool,
    mut hand_on: impl FnMut(Message<'_>),
) -> Result<u64, Damage> {
    let metadata = &entry.metadata;
    if !metadata.encryption_keys.is_empty() {
        return Err(Damage("it is encrypted".to_owned()));
    }
    if metadata.num_chunks_from_msg.is_some_and(|chunks| chunks > 1) {
        return Err(Damage("it is a part of a message that was sent in chunks".to_owned()));
    }
    let payload = unpacked(entry)?;
    let Some(count) = metadata.num_messages_in_batch else {
        if !kept(0) {
            return Ok(0);
        }
        hand_on(Message { payload: &payload, single: None });
        return Ok(1);
    };
    batch(&payload, count, kept, hand_on)
}

fn batch(
    mut batch: &[u8],
    count: i32,
    kept: impl Fn(usize) -> bool,
    mut hand_on: impl FnMut(Message<'_>),
) -> Result<u64, Damage> {
    let broken = || Damage("its batch is broken".to_owned());
    let mut handed_on = 0;
    for index in 0..usize::try_from(count).map_err(|_| broken())? {
        let length = batch.try_get_u32().ok().and_then(|length| usize::try_from(length).ok());
        let (metadata, rest) = length.and_then(|length| batch.split_at_checked(length)).ok_or_else(broken)?;
        let metadata = SingleMessageMetadata::decode(metadata).map_err(|_| broken())?;
        let size = usize::try_from(metadata.payload_size).ok();
        let (message, rest) = size.and_then(|size| rest.split_at_checked(size)).ok_or_else(broken)?;
        batch = rest;
        if kept(index) && metadata.compacted_out != Some(true) {
            hand_on(Message { payload: message, single: Some(&metadata) });
            handed_on += 1;
        }
    }
    Ok(handed_on)
}

/// Whether a message of a batch is not acknowledged, by the broker's set of those: bits, the lowest first. An empty one
/// means all.
pub fn is_kept(ack_set: &[i64], index: usize) -> bool {
    ack_set.is_empty() || ack_set.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1)
}

/// How many messages a broker counts for an entry when it sends it: those of its batch that are not acknowledged, by the
/// same set, and one where there is no batch. `count` is what the entry says of its batch.
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

fn unpacked(entry: &Entry) -> Result<Bytes, Damage> {
    let compression = CompressionType::try_from(entry.metadata.compression.unwrap_or_default())
        .map_err(|_| Damage("it is compressed in a way that is not known".to_owned()))?;
    if compression == CompressionType::None {
        return Ok(entry.payload.clone());
    }
    let size = usize::try_from(entry.metadata.uncompressed_size.unwrap_or_default()).unwrap_or(usize::MAX);
    if size > LARGEST {
        return Err(Damage(format!("it says that it has {size} bytes when it is unpacked")));
    }
    let packed = entry.payload.as_ref();
    let unpacked = match compression {
        CompressionType::None => None,
        CompressionType::Lz4 => lz4_flex::block::decompress(packed, size).ok(),
        CompressionType::Zlib => read(flate2::read::ZlibDecoder::new(packed), size),
        CompressionType::Zstd => {
            ruzstd::decoding::StreamingDecoder::new(packed).ok().and_then(|decoder| read(decoder, size))
        }
        CompressionType::Snappy => (snap::raw::decompress_len(packed) == Ok(size))
            .then(|| snap::raw::Decoder::new().decompress_vec(packed).ok())
            .flatten(),
    };
    match unpacked {
        Some(unpacked) if unpacked.len() == size => Ok(unpacked.into()),
        _ => Err(Damage(format!("it cannot be unpacked ({})", compression.as_str_name()))),
    }
}

/// Reads so many bytes and no more: Java's zlib streams are flushed there, and have no end.
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

    fn messages(entry: &Entry, kept: impl Fn(usize) -> bool) -> Result<Vec<String>, Damage> {
        let mut messages = Vec::new();
        let count =
            each(entry, kept, |one| messages.push(String::from_utf8_lossy(one.payload).into_owned()))?;
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
    fn a_batch_is_taken_apart() {
        let entry = packed(&[("a", false), ("", false), ("gone", true), ("c", false)]);
        assert_eq!(messages(&entry, |_| true).unwrap(), ["a", "", "c"]);
        assert_eq!(messages(&entry, |index| index > 0).unwrap(), ["", "c"]);
    }

    #[test]
    fn a_message_may_come_alone() {
        assert_eq!(messages(&alone(Metadata::default()), |_| true).unwrap(), ["alone"]);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let reason = |entry: &Entry| messages(entry, |_| true).unwrap_err().to_string();
        let encrypted = Metadata { encryption_keys: vec![EncryptionKeys::default()], ..Metadata::default() };
        assert!(reason(&alone(encrypted)).contains("encrypted"));
        let chunk = Metadata { num_chunks_from_msg: Some(2), ..Metadata::default() };
        assert!(reason(&alone(chunk)).contains("chunks"));
        let unknown = Metadata { compression: Some(99), ..Metadata::default() };
        assert!(reason(&alone(unknown)).contains("not known"));
        let count = Metadata { num_messages_in_batch: Some(2), ..Metadata::default() };
        assert!(reason(&Entry { metadata: count, ..packed(&[("a", false)]) }).contains("broken"));
    }

    #[test]
    fn the_brokers_set_has_a_bit_for_each_message_that_is_left() {
        assert!(is_kept(&[], 1_000));
        assert!(!is_kept(&[0b10], 0));
        assert!(is_kept(&[0b10], 1));
        assert!(is_kept(&[0, -1], 64));
        assert!(!is_kept(&[-1], 64));
    }

    #[test]
    fn a_broker_counts_the_messages_that_it_sends() {
        assert_eq!(permits(None, &[]), 1);
        assert_eq!(permits(Some(-1), &[]), 1);
        assert_eq!(permits(Some(300), &[]), 300);
        // Two of three were acknowledged; what stands behind the batch is none of its messages.
        assert_eq!(permits(Some(3), &[0b100]), 1);
        assert_eq!(permits(Some(3), &[-1]), 3);
        assert_eq!(permits(Some(64), &[-1, -1]), 64);
        assert_eq!(permits(Some(i32::MAX), &[0, -1, 1]), 65);
    }

    /// As producers make them: with the crates' own encoders, or written down where a crate has none.
    fn compressed(kind: CompressionType, payload: &[u8], size: usize) -> Entry {
        let metadata = Metadata {
            compression: Some(kind as i32),
            uncompressed_size: Some(u32::try_from(size).unwrap()),
            ..Metadata::default()
        };
        Entry { metadata, payload: Bytes::copy_from_slice(payload) }
    }

    #[test]
    fn what_is_compressed_is_unpacked() {
        let text = "hello ".repeat(100);
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut zlib, text.as_bytes()).unwrap();
        let snappy = snap::raw::Encoder::new().compress_vec(text.as_bytes()).unwrap();
        let zstd =
            ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
        // Five letters, then 95 % of them by reference: a block as LZ4's own description makes it.
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
            assert_eq!(messages(&entry, |_| true), Ok(vec![text.clone()]), "{kind:?}");
            // One that lies about its size is refused, and so is nonsense.
            for (packed, size) in [(&packed[..], 601), (&packed[..], LARGEST + 1), (&b"nonsense"[..], 600)] {
                let damage = messages(&compressed(kind, packed, size), |_| true).unwrap_err().to_string();
                assert!(damage.contains("unpacked"), "{kind:?}: {damage}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_compressed_bytes_make_it_panic(bytes: Vec<u8>, kind in 1_i32..5, size in 0_u32..10_000) {
            let metadata = Metadata {
                compression: Some(kind),
                uncompressed_size: Some(size),
                ..Metadata::default()
            };
            let _ = messages(&Entry { metadata, payload: Bytes::from(bytes) }, |_| true);
        }

        #[test]
        fn what_is_counted_is_what_is_kept(
            count in 0_i32..300,
            ack_set in prop::collection::vec(any::<i64>(), 0..6),
        ) {
            let kept = (0..usize::try_from(count).unwrap()).filter(|index| is_kept(&ack_set, *index)).count();
            prop_assert_eq!(permits(Some(count), &ack_set), u32::try_from(kept).unwrap());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, count: i32) {
            let _ = batch(&bytes, count, |_| true, |_| ());
        }
    }
}
