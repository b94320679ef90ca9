//! The frames of Pulsar's protocol: a command, and after some commands a checksum, metadata and a payload.
//! The payload is not copied.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message as _;
use pulsar::message::Metadata;
use pulsar::message::proto::base_command::Type;
use pulsar::message::proto::command_ack::ValidationError;
use pulsar::message::proto::{BaseCommand, CommandMessage};
use tokio_util::codec::{Decoder, Encoder};

/// The limit of a frame's length, for any configuration of a broker.
const LONGEST: usize = 128 << 20;

/// The marker of a checksum.
const CHECKSUM: u16 = 0x0e01;

/// The marker of the broker's metadata.
const BROKER_METADATA: u16 = 0x0e02;

/// A received frame. Commands are boxed, because their type is large.
#[derive(Debug)]
pub enum Frame {
    /// Messages for a consumer.
    Messages(Box<Delivery>),
    /// Any other command.
    Command(Box<BaseCommand>),
}

/// Messages for a consumer.
#[derive(Debug)]
pub struct Delivery {
    /// The command with the broker's data about them.
    pub message: CommandMessage,
    /// The encoded entry. Its decoded fields need more memory, so a waiting delivery does not have them.
    pub encoded: Bytes,
}

impl Delivery {
    /// The memory that it uses while it waits, in bytes.
    pub fn size(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.message.ack_set) + self.encoded.len()
    }

    /// The decoded entry.
    pub fn entry(&self) -> Result<Entry, Damage> {
        entry(self.encoded.clone())
    }
}

/// A stored entry: one message, or a batch.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The metadata of its producer.
    pub metadata: Metadata,
    /// The message or the batch, perhaps compressed.
    pub payload: Bytes,
}

/// Why an entry cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Damage {
    /// The reason.
    pub why: String,
    /// How the entry is corrupt; None if another client may be able to read it.
    pub corruption: Option<ValidationError>,
    /// The size of its batch, if its metadata are readable.
    pub batched: Option<i32>,
}

impl Damage {
    /// An entry that no client can read.
    pub fn corrupt(how: ValidationError, why: impl Into<String>) -> Self {
        Self { why: why.into(), corruption: Some(how), batched: None }
    }

    /// An entry that this client does not support.
    pub fn unsupported(why: impl Into<String>) -> Self {
        Self { why: why.into(), corruption: None, batched: None }
    }
}

/// Why a connection is unusable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An I/O error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Bytes that are not Pulsar's protocol.
    #[error("the broker does not speak Pulsar's protocol: {0}")]
    Protocol(String),
}

/// Turns bytes into frames and commands into bytes.
#[derive(Debug, Default)]
pub struct Codec;

impl Decoder for Codec {
    type Item = Frame;
    type Error = Error;

    fn decode(&mut self, source: &mut BytesMut) -> Result<Option<Frame>, Error> {
        let Some(length) = source.first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if !(4..=LONGEST).contains(&length) {
            return Err(Error::Protocol(format!("a frame of {length} bytes")));
        }
        if source.len() < length + 4 {
            source.reserve(length + 4 - source.len());
            return Ok(None);
        }
        source.advance(4);
        let mut frame = source.split_to(length).freeze();
        let protocol = |what: &str| Error::Protocol(what.to_owned());
        let command = usize::try_from(frame.get_u32()).unwrap_or(usize::MAX);
        if command > frame.len() {
            return Err(protocol("a command that is longer than its frame"));
        }
        let command = frame.split_to(command);
        let malformed = |error: prost::DecodeError| Error::Protocol(format!("an invalid command ({error})"));
        let message = match message(&command) {
            Some(message) => Some(CommandMessage::decode(message).map_err(malformed)?),
            None => None,
        };
        let frame = if let Some(message) = message {
            Frame::Messages(Box::new(Delivery { message, encoded: frame }))
        } else {
            Frame::Command(Box::new(BaseCommand::decode(command).map_err(malformed)?))
        };
        Ok(Some(frame))
    }
}

/// The encoded message of a command that has only its type and this field. Most commands are of this form,
/// and this is much cheaper than decoding all fields.
fn message(command: &[u8]) -> Option<&[u8]> {
    const TYPE: u8 = 1 << 3;
    const FIELD: u8 = (9 << 3) | 2;
    let kind = u8::try_from(Type::Message as i32).ok()?;
    let mut rest = command.strip_prefix(&[TYPE, kind, FIELD])?;
    let length = prost::decode_length_delimiter(&mut rest).ok()?;
    (length == rest.len()).then_some(rest)
}

fn entry(mut bytes: Bytes) -> Result<Entry, Damage> {
    let short = || Damage::corrupt(ValidationError::BatchDeSerializeError, "it ends early");
    if marker(&bytes) == Some(BROKER_METADATA) {
        bytes.advance(2);
        let length = take_length(&mut bytes).ok_or_else(short)?;
        bytes.advance(length);
    }
    let mut is_intact = true;
    if marker(&bytes) == Some(CHECKSUM) {
        bytes.advance(2);
        let checksum = bytes.try_get_u32().map_err(|_| short())?;
        is_intact = crc32c::crc32c(&bytes) == checksum;
    }
    let metadata = take_length(&mut bytes).ok_or_else(short).and_then(|length| {
        Metadata::decode(bytes.split_to(length)).map_err(|error| {
            let why = format!("its metadata are invalid ({error})");
            Damage::corrupt(ValidationError::BatchDeSerializeError, why)
        })
    });
    if !is_intact {
        let batched = metadata.ok().and_then(|metadata| metadata.num_messages_in_batch);
        let damage = Damage::corrupt(ValidationError::ChecksumMismatch, "its checksum is wrong");
        return Err(Damage { batched, ..damage });
    }
    Ok(Entry { metadata: metadata?, payload: bytes })
}

fn marker(bytes: &Bytes) -> Option<u16> {
    bytes.first_chunk().map(|marker| u16::from_be_bytes(*marker))
}

/// Reads a length from the front; None if fewer bytes follow.
fn take_length(bytes: &mut Bytes) -> Option<usize> {
    let length = usize::try_from(bytes.try_get_u32().ok()?).ok()?;
    (length <= bytes.len()).then_some(length)
}

impl Encoder<(Box<BaseCommand>, Option<Entry>)> for Codec {
    type Error = Error;

    fn encode(
        &mut self,
        (command, entry): (Box<BaseCommand>, Option<Entry>),
        target: &mut BytesMut,
    ) -> Result<(), Error> {
        let length = |length: usize| {
            u32::try_from(length).map_err(|_| Error::Protocol("a frame too long to send".to_owned()))
        };
        let failed = |error: prost::EncodeError| Error::Protocol(error.to_string());
        let command_length = command.encoded_len();
        let metadata = entry.as_ref().map_or(0, |entry| entry.metadata.encoded_len());
        // An entry has a marker, a checksum, and the length of its metadata.
        let entry_length = entry.as_ref().map_or(0, |entry| 10 + metadata + entry.payload.len());
        target.reserve(8 + command_length + entry_length);
        target.put_u32(length(4 + command_length + entry_length)?);
        target.put_u32(length(command_length)?);
        command.encode(target).map_err(failed)?;
        let Some(Entry { metadata: fields, payload }) = entry else { return Ok(()) };
        target.put_u16(CHECKSUM);
        let at = target.len();
        target.put_u32(0);
        target.put_u32(length(metadata)?);
        fields.encode(target).map_err(failed)?;
        target.put_slice(&payload);
        let checksum = crc32c::crc32c(&target[at + 4..]);
        target[at..at + 4].copy_from_slice(&checksum.to_be_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use pulsar::message::proto::{CommandPing, MessageIdData};

    use super::*;

    fn message() -> BaseCommand {
        let message_id = MessageIdData { ledger_id: 1, entry_id: 2, ..MessageIdData::default() };
        let message = CommandMessage { consumer_id: 3, message_id, ..CommandMessage::default() };
        BaseCommand { r#type: Type::Message as i32, message: Some(message), ..BaseCommand::default() }
    }

    /// A frame in the form of a broker.
    fn framed(
        command: &BaseCommand,
        prefix: &[u8],
        entry: Option<&Entry>,
        checksum: impl Fn(u32) -> u32,
    ) -> BytesMut {
        let mut body = BytesMut::new();
        body.put_u32(u32::try_from(command.encoded_len()).unwrap());
        command.encode(&mut body).unwrap();
        body.put_slice(prefix);
        if let Some(entry) = entry {
            let mut summed = BytesMut::new();
            summed.put_u32(u32::try_from(entry.metadata.encoded_len()).unwrap());
            entry.metadata.encode(&mut summed).unwrap();
            summed.put_slice(&entry.payload);
            body.put_u16(CHECKSUM);
            body.put_u32(checksum(crc32c::crc32c(&summed)));
            body.put_slice(&summed);
        }
        let mut frame = BytesMut::new();
        frame.put_u32(u32::try_from(body.len()).unwrap());
        frame.put_slice(&body);
        frame
    }

    fn next(frames: &mut BytesMut) -> Delivery {
        match Codec.decode(frames).unwrap().unwrap() {
            Frame::Messages(delivery) => *delivery,
            Frame::Command(command) => panic!("{command:?}"),
        }
    }

    fn hello() -> Entry {
        let metadata = Metadata { producer_name: "p".to_owned(), ..Metadata::default() };
        Entry { metadata, payload: Bytes::from_static(b"hello") }
    }

    #[test]
    fn reads_a_complete_frame() {
        let whole = framed(&message(), &[], Some(&hello()), |sum| sum);
        for length in 0..whole.len() {
            let mut part = BytesMut::from(&whole[..length]);
            assert!(Codec.decode(&mut part).unwrap().is_none(), "{length}");
        }
        let mut twice = whole.clone();
        twice.extend_from_slice(&whole);
        for _ in 0..2 {
            let delivery = next(&mut twice);
            assert_eq!(delivery.message.consumer_id, 3);
            assert_eq!(delivery.entry().unwrap().payload, b"hello".as_slice());
        }
        assert!(twice.is_empty());
    }

    #[test]
    fn skips_the_brokers_metadata() {
        let prefix = [0x0e, 0x02, 0, 0, 0, 2, 8, 1];
        let mut frame = framed(&message(), &prefix, Some(&hello()), |sum| sum);
        assert_eq!(next(&mut frame).entry().unwrap().payload, b"hello".as_slice());
    }

    #[test]
    fn a_damaged_entry_does_not_break_the_connection() {
        let mut frames = framed(&message(), &[], Some(&hello()), |sum| !sum);
        frames.extend_from_slice(&framed(&message(), &[0x0e, 0x01, 0], None, |sum| sum));
        frames.extend_from_slice(&framed(&message(), &[], Some(&hello()), |sum| sum));
        let mut entry = || next(&mut frames).entry();
        assert!(entry().unwrap_err().to_string().contains("checksum"));
        assert!(entry().unwrap_err().to_string().contains("ends early"));
        assert!(entry().is_ok());
    }

    #[test]
    fn rejects_another_protocol() {
        let error = Codec.decode(&mut BytesMut::from("HTTP/1.1 400 Bad Request\r\n")).unwrap_err();
        assert!(error.to_string().contains("does not speak"), "{error}");
    }

    #[test]
    fn encodes_and_decodes_commands() {
        let ping =
            BaseCommand { r#type: Type::Ping as i32, ping: Some(CommandPing {}), ..BaseCommand::default() };
        let mut bytes = BytesMut::new();
        Codec.encode((Box::new(ping.clone()), None), &mut bytes).unwrap();
        let read = Codec.decode(&mut bytes).unwrap().unwrap();
        assert!(matches!(read, Frame::Command(command) if *command == ping));
    }

    #[test]
    fn encodes_and_decodes_entries() {
        let mut bytes = BytesMut::new();
        for _ in 0..2 {
            Codec.encode((Box::new(message()), Some(hello())), &mut bytes).unwrap();
        }
        for _ in 0..2 {
            let entry = next(&mut bytes).entry().unwrap();
            assert_eq!((entry.metadata.producer_name.as_str(), &*entry.payload), ("p", &b"hello"[..]));
        }
        assert!(bytes.is_empty());
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes: Vec<u8>) {
            let mut bytes = BytesMut::from(bytes.as_slice());
            while let Ok(Some(_)) = Codec.decode(&mut bytes) {}
        }

        #[test]
        fn no_entry_causes_a_panic(bytes: Vec<u8>) {
            let _ = entry(Bytes::from(bytes));
        }
    }
}
