//! Which requests are audited, and what an audit asks.

use super::counts::{AuditCounts, Counts};
use super::{BernoulliSampler, ComparedAnswer};
use crate::plan::Plan;

/// Settings of the share of requests that is audited.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AuditSettings {
    /// Share of the requests, in [0, 1]. 0 audits none.
    pub share: f64,
    /// Share while the inputs seem to have changed or a certificate does not hold, in [0, 1]; at least `share`.
    pub elevated_share: f64,
}

impl AuditSettings {
    /// No audits.
    pub const OFF: Self = Self {
        share: 0.0,
        elevated_share: 0.0,
    };

    /// Audits that share of the requests, and ten times as many while audits are elevated, up to a tenth of all.
    pub fn with_share(share: f64) -> Self {
        Self {
            share,
            elevated_share: (10.0 * share).min(0.1).max(share),
        }
    }
}

/// Load of the process and open audits, which an audit would add to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditCapacity {
    /// Requests of clients in flight.
    pub in_flight: usize,
    /// Requests in flight at most.
    pub max_in_flight: usize,
    /// Audits that have not ended.
    pub open: usize,
}

/// Audits of an ingress that have not ended, at most.
const MAX_OPEN: usize = 8;

impl AuditCapacity {
    /// Returns whether an audit may begin. Audits are the first thing dropped: they stop at an eighth of what clients may have in flight.
    fn allows_another(self) -> bool {
        self.open < MAX_OPEN && self.in_flight.saturating_mul(8) <= self.max_in_flight
    }
}

/// Chooses the requests to audit, before it is known which variant answers them: the chosen ones are then a fair sample of all requests,
/// and those that the largest variant answers need no audit, because they agree with it.
#[derive(Debug, Clone)]
pub struct Sampler {
    draws: BernoulliSampler,
    settings: AuditSettings,
}

impl Sampler {
    /// Creates a sampler; ingresses have different seeds.
    pub fn new(settings: AuditSettings, seed: u64) -> Self {
        Self {
            draws: BernoulliSampler::new(seed),
            settings,
        }
    }

    /// Returns whether the next request is audited.
    pub fn selects(&mut self, elevated: bool, capacity: AuditCapacity) -> bool {
        let share = if elevated {
            self.settings.elevated_share
        } else {
            self.settings.share
        };
        share > 0.0 && self.draws.draw(share) && capacity.allows_another()
    }
}

/// Gears that the audit of one request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audit {
    /// The index in the certified list of the cascade that answered the client.
    pub index: usize,
    /// The gear that asks the largest variant alone; `None` if the client's answer is its own.
    pub largest: Option<u32>,
    /// The index of the next cheaper cascade and the gear that asks it, while a certificate does not hold.
    pub probe: Option<(usize, u32)>,
}

impl Audit {
    /// Returns what to ask about a request that ran in `gear` and was answered by `variant`; `None` if its plan has no certified list.
    pub fn new(plan: &Plan, gear: u32, variant: &str) -> Option<Self> {
        let index = plan.certified_index(gear)?;
        let list = plan.certified.as_ref()?;
        let largest = list.cascades.first()?.gear.wiring.stages.last()?;
        let is_limited = gear as usize >= plan.gears.len();
        let next = plan.gear_of_certified(index + 1).filter(|_| is_limited);
        Some(Self {
            index,
            largest: plan.gear_of_certified(0).filter(|_| variant != largest.variant),
            probe: next.map(|gear| (index + 1, gear)),
        })
    }

    /// Counts its outcome. `None` stands for an answer that did not come.
    pub fn count(
        &self,
        counts: &mut Counts,
        live: &ComparedAnswer,
        largest: Option<&ComparedAnswer>,
        probe: Option<&ComparedAnswer>,
    ) {
        let largest = if self.largest.is_none() {
            Some(live)
        } else {
            largest
        };
        if let Some(counts) = counts.at(self.index) {
            note(&mut counts.audits, Some(live), largest);
        }
        if let Some((index, _)) = self.probe
            && let Some(counts) = counts.at(index)
        {
            note(&mut counts.probes, probe, largest);
        }
    }
}

fn note(counts: &mut AuditCounts, one: Option<&ComparedAnswer>, largest: Option<&ComparedAnswer>) {
    let count = match (one, largest) {
        (Some(one), Some(largest)) if largest.accepts(one) => &mut counts.agree,
        (Some(_), Some(_)) => &mut counts.differ,
        _ => &mut counts.failed,
    };
    *count = count.saturating_add(1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate_monitor::tests::{list, plan};

    const FREE: AuditCapacity = AuditCapacity {
        in_flight: 0,
        max_in_flight: 100,
        open: 0,
    };

    #[test]
    fn a_share_of_requests_is_chosen_and_more_while_elevated() {
        let mut sampler = Sampler::new(AuditSettings::with_share(0.01), 1);
        let mut chosen = |elevated, capacity| {
            (0..20_000)
                .filter(|_| sampler.selects(elevated, capacity))
                .count()
        };
        assert!((150..250).contains(&chosen(false, FREE)));
        assert!((1_800..2_200).contains(&chosen(true, FREE)));
        let busy = AuditCapacity {
            in_flight: 13,
            ..FREE
        };
        let open = AuditCapacity {
            open: MAX_OPEN,
            ..FREE
        };
        assert_eq!((chosen(true, busy), chosen(true, open)), (0, 0));
        let mut off = Sampler::new(AuditSettings::OFF, 1);
        assert!(!(0..1_000).any(|_| off.selects(true, FREE)));
        assert!((AuditSettings::with_share(0.5).elevated_share - 0.5).abs() < 1e-12);
    }

    #[test]
    fn an_audit_asks_what_it_does_not_know() {
        let plan = plan(list(&[0, 10, 20]));
        // One gear of its own, whose home is the cheapest cascade.
        let early = Audit::new(&plan, 0, "small").unwrap();
        assert_eq!((early.index, early.largest, early.probe), (2, Some(1), None));
        let late = Audit::new(&plan, 0, "large").unwrap();
        assert_eq!((late.largest, late.probe), (None, None));
        let limited = Audit::new(&plan, 2, "small").unwrap();
        assert_eq!(
            (limited.index, limited.largest, limited.probe),
            (1, Some(1), Some((2, 3)))
        );
        let safest = Audit::new(&plan, 1, "large").unwrap();
        assert_eq!(
            (safest.index, safest.largest, safest.probe),
            (0, None, Some((1, 2)))
        );
        assert_eq!(Audit::new(&plan, 9, "small"), None);
    }

    #[test]
    fn outcomes_are_counted_where_they_belong() {
        let audit = Audit {
            index: 1,
            largest: Some(1),
            probe: Some((2, 3)),
        };
        let seven = ComparedAnswer::Number(7);
        let mut counts = Counts::default();
        audit.count(
            &mut counts,
            &seven,
            Some(&seven),
            Some(&ComparedAnswer::Number(3)),
        );
        audit.count(&mut counts, &seven, Some(&ComparedAnswer::Number(8)), None);
        audit.count(&mut counts, &seven, None, Some(&seven));
        let of = |agree, differ, failed| AuditCounts {
            agree,
            differ,
            failed,
        };
        assert_eq!(counts.cascades[1].audits, of(1, 1, 1));
        assert_eq!(counts.cascades[2].probes, of(0, 1, 2));
        let own = Audit {
            largest: None,
            ..audit
        };
        own.count(&mut counts, &seven, None, Some(&seven));
        assert_eq!(counts.cascades[1].audits, of(2, 1, 1));
        assert_eq!(counts.cascades[2].probes, of(1, 1, 2));
    }
}
