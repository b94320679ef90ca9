//! Received messages that wait to become lines, and their size.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::frame::Delivery;
use crate::link::number;

/// Deliveries in the order in which they came.
#[derive(Debug, Default)]
pub struct Waiting {
    deliveries: VecDeque<(Instant, Box<Delivery>)>,
    bytes: usize,
}

impl Waiting {
    /// Adds the last one.
    pub fn push(&mut self, delivery: Box<Delivery>) {
        self.bytes += delivery.size();
        self.deliveries.push_back((Instant::now(), delivery));
    }

    /// Takes the first one.
    pub fn pop(&mut self) -> Option<Delivery> {
        let (_, delivery) = self.deliveries.pop_front()?;
        self.bytes -= delivery.size();
        Some(*delivery)
    }

    /// Drops those of consumers, which are sorted.
    pub fn drop_from(&mut self, consumers: &[usize]) {
        let is_from = |consumer| consumers.binary_search_by_key(&consumer, |one| number(*one)).is_ok();
        self.deliveries.retain(|(_, delivery)| !is_from(delivery.message.consumer_id));
        self.bytes = self.deliveries.iter().map(|(_, delivery)| delivery.size()).sum();
    }

    /// Takes all of some consumers in their order, if the first of these has waited for this long.
    pub fn take_older(&mut self, limit: Duration, is_of: impl Fn(usize) -> bool) -> Vec<Delivery> {
        let is_of =
            |delivery: &Delivery| is_of(usize::try_from(delivery.message.consumer_id).unwrap_or(usize::MAX));
        let first = self.deliveries.iter().find(|(_, delivery)| is_of(delivery));
        if first.is_none_or(|(since, _)| since.elapsed() < limit) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.deliveries);
        let (taken, kept) = all.into_iter().partition(|(_, delivery)| is_of(delivery));
        self.deliveries = kept;
        self.bytes = self.deliveries.iter().map(|(_, delivery)| delivery.size()).sum();
        let taken: VecDeque<(Instant, Box<Delivery>)> = taken;
        taken.into_iter().map(|(_, delivery)| *delivery).collect()
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
