//! Received messages that wait to become lines, and their size.

use std::collections::VecDeque;

use crate::frame::Delivery;
use crate::link::number;

/// Deliveries in the order in which they came.
#[derive(Debug, Default)]
pub struct Waiting {
    deliveries: VecDeque<Box<Delivery>>,
    bytes: usize,
}

impl Waiting {
    /// Adds the last one.
    pub fn push(&mut self, delivery: Box<Delivery>) {
        self.bytes += delivery.size();
        self.deliveries.push_back(delivery);
    }

    /// Takes the first one.
    pub fn pop(&mut self) -> Option<Delivery> {
        let delivery = self.deliveries.pop_front()?;
        self.bytes -= delivery.size();
        Some(*delivery)
    }

    /// Drops those of consumers, which are sorted.
    pub fn drop_from(&mut self, consumers: &[usize]) {
        let is_from = |consumer| consumers.binary_search_by_key(&consumer, |one| number(*one)).is_ok();
        self.deliveries.retain(|delivery| !is_from(delivery.message.consumer_id));
        self.bytes = self.deliveries.iter().map(|delivery| delivery.size()).sum();
    }

    /// Their size; 0 only without deliveries.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pulsar::message::proto::CommandMessage;

    use super::*;

    #[test]
    fn knows_its_size() {
        let mut waiting = Waiting::default();
        let mut sizes = Vec::new();
        for (consumer_id, size) in [(0, 0), (1, 1_000), (0, 500)] {
            let message = CommandMessage { consumer_id, ..CommandMessage::default() };
            let delivery = Delivery { message, encoded: Bytes::from(vec![0; size]) };
            sizes.push(delivery.size());
            waiting.push(delivery.into());
        }
        assert!(sizes[0] > 0 && sizes[1] == sizes[0] + 1_000);
        assert_eq!(waiting.bytes(), sizes.iter().sum::<usize>());
        waiting.drop_from(&[1, 3]);
        assert_eq!(waiting.bytes(), sizes[0] + sizes[2]);
        assert_eq!(waiting.pop().map(|one| one.encoded.len()), Some(0));
        assert_eq!(waiting.pop().map(|one| one.encoded.len()), Some(500));
        assert!(waiting.pop().is_none() && waiting.bytes() == 0);
    }
}
