//! Delivery: subscriptions, queue groups and "no responders" notices.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;
use std::sync::Arc;

use super::outbox::Message;
use super::parser::{Publish, Subscribe, Unsubscribe};
use super::session::{Ending, Session, Subscription};
use super::stats::Counters;
use super::trie::SubjectTrie;

/// The registry of clients and subscriptions. It belongs to the broker's thread and needs no lock.
#[derive(Debug)]
pub(super) struct Hub {
    subscriptions: SubjectTrie<Rc<Subscription>>,
    sessions: HashMap<u64, Rc<Session>>,
    counters: Arc<Counters>,
    random: u64,
    /// Reused between messages to avoid allocations.
    matches: Matches,
}

/// The subscriptions that one message reaches.
#[derive(Debug, Default)]
struct Matches {
    each: Vec<Rc<Subscription>>,
    grouped: Vec<Rc<Subscription>>,
    used_up: Vec<Rc<Subscription>>,
    congested: Option<Rc<Session>>,
}

impl Hub {
    pub(super) fn new(counters: Arc<Counters>) -> Self {
        Self {
            subscriptions: SubjectTrie::default(),
            sessions: HashMap::new(),
            counters,
            random: RandomState::new().hash_one(0) | 1,
            matches: Matches::default(),
        }
    }

    /// Registers a client.
    pub(super) fn enter(&mut self, session: &Rc<Session>) {
        self.sessions.insert(session.id, Rc::clone(session));
        self.counters.connections.set(self.sessions.len() as u64);
    }

    /// Removes a client and its subscriptions.
    pub(super) fn leave(&mut self, session: &Rc<Session>) {
        let Some(session) = self.sessions.remove(&session.id) else {
            return;
        };
        let subscriptions = std::mem::take(&mut *session.subscriptions.borrow_mut());
        for subscription in subscriptions.into_values() {
            self.unfile(&subscription);
        }
        if session.is_slow() {
            self.counters.slow_consumers.add(1);
            tracing::warn!(client = session.id, "disconnected a slow consumer");
        }
        self.counters.connections.set(self.sessions.len() as u64);
    }

    /// Closes every client's connection.
    pub(super) fn close(&self) {
        for session in self.sessions.values() {
            session.end(Ending::Shutdown);
        }
    }

    /// Adds a subscription, unless the client already uses its id.
    pub(super) fn subscribe(&mut self, session: &Rc<Session>, subscribe: Subscribe) {
        let mut own = session.subscriptions.borrow_mut();
        if own.contains_key(&subscribe.sid) {
            return;
        }
        let subscription = Rc::new(Subscription {
            session: Rc::clone(session),
            sid: subscribe.sid.clone(),
            subject: subscribe.subject,
            queue: subscribe.queue,
            delivered: Cell::new(0),
            after: Cell::new(None),
        });
        own.insert(subscribe.sid, Rc::clone(&subscription));
        self.subscriptions
            .insert(&subscription.subject, Rc::clone(&subscription));
        self.counters.subscriptions.add(1);
    }

    /// Ends a subscription, now or after a number of messages.
    pub(super) fn unsubscribe(&mut self, session: &Rc<Session>, unsubscribe: &Unsubscribe) {
        let own = session
            .subscriptions
            .borrow()
            .get(&unsubscribe.sid)
            .map(Rc::clone);
        let Some(subscription) = own else { return };
        // Without a number it ends at once.
        subscription.after.set(Some(unsubscribe.after.unwrap_or(0)));
        if subscription.is_used_up() {
            self.remove(&subscription);
        }
    }

    /// Delivers a message that is part of a buffer of `buffer` bytes; returns a congested receiver, if there is one.
    pub(super) fn publish(
        &mut self,
        from: &Rc<Session>,
        publish: &Publish,
        buffer: usize,
    ) -> Option<Rc<Session>> {
        let message = Message {
            subject: publish.subject(),
            reply: publish.reply(),
            header: publish.header(),
            body: publish.body(),
            buffer,
        };
        let mut matches = std::mem::take(&mut self.matches);
        self.subscriptions
            .each_match(message.subject, |subscription| matches.add(subscription));
        let start = self.next_random();
        let delivered = matches.deliver(from, &message, start);
        for subscription in matches.used_up.drain(..) {
            self.remove(&subscription);
        }
        let congested = matches.congested.take();
        matches.clear();
        self.matches = matches;
        self.counters.count(publish.size() as u64, delivered);
        if let (0, Some(reply), true) = (delivered, message.reply, from.options.get().no_responders) {
            self.send_no_responders(from, message.subject, reply);
        }
        congested
    }

    /// Sends a "no responders" notice to a requester through its subscription to the reply subject.
    fn send_no_responders(&self, from: &Rc<Session>, subject: &[u8], reply: &[u8]) {
        let mut own = None;
        self.subscriptions.each_match(reply, |subscription| {
            if Rc::ptr_eq(&subscription.session, from) {
                own = Some(subscription);
            }
        });
        let Some(subscription) = own else { return };
        let header = [b"NATS/1.0 503\r\nNats-Subject: ", subject, b"\r\n\r\n"].concat();
        let message = Message {
            subject: reply,
            reply: None,
            header: Some(header.len()),
            body: [&header, &b"\r\n"[..]].concat().into(),
            buffer: 0,
        };
        from.deliver(&message, &subscription.sid);
    }

    fn remove(&mut self, subscription: &Rc<Subscription>) {
        let own = subscription
            .session
            .subscriptions
            .borrow_mut()
            .remove(&subscription.sid);
        if let Some(subscription) = own {
            self.unfile(&subscription);
        }
    }

    fn unfile(&mut self, subscription: &Rc<Subscription>) {
        self.subscriptions
            .remove(&subscription.subject, |filed| Rc::ptr_eq(filed, subscription));
        self.counters.subscriptions.subtract(1);
    }

    /// Marsaglia's xorshift: balances load over a queue group; not cryptographic.
    fn next_random(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random as usize
    }
}

impl Matches {
    fn add(&mut self, subscription: &Rc<Subscription>) {
        let list = match subscription.queue {
            Some(_) => &mut self.grouped,
            None => &mut self.each,
        };
        list.push(Rc::clone(subscription));
    }

    fn clear(&mut self) {
        self.each.clear();
        self.grouped.clear();
    }

    /// Delivers to every plain subscription and to one member of each queue group; returns the number of receivers.
    fn deliver(&mut self, from: &Rc<Session>, message: &Message<'_>, start: usize) -> u64 {
        let mut delivered = 0;
        let (each, mut grouped) = (std::mem::take(&mut self.each), std::mem::take(&mut self.grouped));
        for subscription in &each {
            delivered += u64::from(self.deliver_one(from, message, subscription));
        }
        // Members of one group may have subscribed with several matching patterns.
        grouped.sort_unstable_by(|a, b| a.queue.cmp(&b.queue));
        for group in grouped.chunk_by(|a, b| a.queue == b.queue) {
            let (first, last) = group.split_at(start % group.len().max(1));
            let mut members = last.iter().chain(first);
            delivered += u64::from(members.any(|member| self.deliver_one(from, message, member)));
        }
        (self.each, self.grouped) = (each, grouped);
        delivered
    }

    fn deliver_one(
        &mut self,
        from: &Rc<Session>,
        message: &Message<'_>,
        subscription: &Rc<Subscription>,
    ) -> bool {
        let to = &subscription.session;
        let own = Rc::ptr_eq(to, from);
        if own && !from.options.get().echo || !to.deliver(message, &subscription.sid) {
            return false;
        }
        subscription.delivered.set(subscription.delivered.get() + 1);
        if subscription.is_used_up() {
            self.used_up.push(Rc::clone(subscription));
        }
        if !own && to.is_congested() {
            self.congested = Some(Rc::clone(to));
        }
        true
    }
}
