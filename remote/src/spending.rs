//! A limit of spending, and the money that calls under way may cost.

use std::sync::{Arc, Mutex};

use kaskade_policy::remote::price::Spending;

use crate::error::CallError;
use crate::lock;

/// A limit of spending. Its clones share it, so that it holds for several endpoints together.
#[derive(Debug, Clone)]
pub struct SpendLimit(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    spending: Spending,
    /// The most that the calls under way may cost.
    reserved: f64,
}

impl SpendLimit {
    /// Creates a limit of which nothing is spent.
    pub fn new(limit: f64) -> Self {
        Self(Arc::new(Mutex::new(State {
            spending: Spending::new(limit),
            reserved: 0.0,
        })))
    }

    /// Reserves the most that calls may cost, with `left` requests to go.
    ///
    /// # Errors
    /// [`CallError::SpendLimit`].
    pub(crate) fn reserve(&self, most: f64, left: u64) -> Result<Reserved, CallError> {
        let mut state = lock(&self.0);
        state
            .spending
            .admit(state.reserved + most, left)
            .map_err(CallError::SpendLimit)?;
        state.reserved += most;
        drop(state);
        Ok(Reserved {
            limit: Some(self.clone()),
            most,
            cost: None,
        })
    }
}

impl PartialEq for SpendLimit {
    /// Returns whether they are one limit.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Money that a call may cost. A refused call costs nothing. One that breaks off, is given up or has an unusable answer costs what
/// the answer states, and the most if that is unknown.
pub(crate) struct Reserved {
    limit: Option<SpendLimit>,
    most: f64,
    /// What is paid, as far as is known; `None` for a call that was not sent or was refused.
    cost: Option<f64>,
}

impl Reserved {
    /// Returns what calls without a limit reserve.
    pub(crate) const fn nothing() -> Self {
        Self {
            limit: None,
            most: 0.0,
            cost: None,
        }
    }

    /// Notes that the call is sent: it costs the most until more is known.
    pub(crate) const fn sent(&mut self) {
        self.cost = Some(self.most);
    }

    /// Notes what the call costs, if that is known.
    pub(crate) fn settle(&mut self, cost: Option<f64>) {
        self.cost = Some(cost.unwrap_or(self.most));
    }

    /// Releases the reservation if the endpoint refused the call, or was not reached.
    pub(crate) fn release_if_refused<T>(&mut self, outcome: Result<T, CallError>) -> Result<T, CallError> {
        if outcome.as_ref().is_err_and(CallError::is_refusal) {
            self.cost = None;
        }
        outcome
    }

    /// Pays the call, and keeps this much reserved for the calls that follow it.
    pub(crate) fn pay_and_keep(&mut self, most: f64) {
        self.release(most);
        self.most = most;
    }

    /// Pays the call, and releases all but `kept` of the reservation.
    fn release(&mut self, kept: f64) {
        if let Some(limit) = &self.limit {
            let mut state = lock(&limit.0);
            state.reserved -= self.most - kept;
            if let Some(cost) = self.cost.take() {
                state.spending.spend(cost);
            }
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.release(0.0);
    }
}
