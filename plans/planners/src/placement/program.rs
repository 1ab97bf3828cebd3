//! A combination as an integer program (eq. 2 to 4).
//!
//! The product of two placements in eq. 2 is not linear. Costs are hierarchical, though: an edge costs what the network takes, less
//! what a common host saves, less what a common device saves on top. So an edge has one variable per device, at most that either end is
//! placed, and one per host, instead of one per pair of devices.

use super::problem::Problem;
use crate::lp::{Limits, LpError, Program, Relation, Solver, Variable};

/// An optimum, or the best found within the limits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProgramSolution {
    /// Devices by instance.
    pub(super) placed: Vec<usize>,
    /// Whether there is no better one.
    pub(super) proven: bool,
}

/// The integer program of a problem.
pub(super) struct Placing {
    program: Program,
    /// Whether an instance is on a device, by instance and device.
    placed: Vec<Vec<Variable>>,
    savings: Vec<Saving>,
}

/// Saving of an edge if both of its ends are on the given devices: a single one, or those of a host.
struct Saving {
    ends: [usize; 2],
    devices: Vec<usize>,
    variable: Variable,
}

impl Placing {
    pub(super) fn new(problem: &Problem<'_>) -> Self {
        let devices = &problem.cluster.devices;
        let (memory, work) = (problem.cluster.largest_memory(), problem.cluster.most_work());
        // Costs in units of the largest, so that coefficients are of one size.
        let largest = problem
            .edges()
            .map(|(_, _, costs)| costs.network)
            .fold(0.0, f64::max);
        let unit = if largest > 0.0 { 1.0 / largest } else { 1.0 };
        let mut program = Program::new();
        let placed: Vec<Vec<Variable>> = problem
            .instances
            .iter()
            .map(|_| devices.iter().map(|_| program.integer(0.0, 1)).collect())
            .collect();
        for row in &placed {
            program.constraint(row.iter().map(|variable| (*variable, 1.0)), Relation::Equal, 1.0);
        }
        for (device, limits) in devices.iter().enumerate() {
            let needs = |need: fn(&super::problem::InstanceClass) -> f64, unit: f64| {
                let terms = placed.iter().enumerate().filter_map(move |(instance, row)| {
                    Some((*row.get(device)?, need(problem.kind_of(instance)?) / unit))
                });
                terms.collect::<Vec<_>>()
            };
            program.constraint(
                needs(|kind| kind.memory, memory),
                Relation::AtMost,
                limits.memory / memory,
            );
            program.constraint(
                needs(|kind| kind.work, work),
                Relation::AtMost,
                limits.work / work,
            );
        }
        let mut placing = Self {
            program,
            placed,
            savings: Vec::new(),
        };
        for (from, to, costs) in problem.edges() {
            let ends = [from, to];
            let (by_host, by_device) = (costs.network - costs.host, costs.host - costs.device);
            if problem.cluster.is_flat() {
                placing.save_by_device(ends, (by_host + by_device) * unit);
            } else {
                placing.save_by_device(ends, by_device * unit);
                placing.save_by_host(problem, ends, by_host * unit);
            }
        }
        placing
    }

    /// Returns the number of variables.
    pub(super) fn variables(&self) -> usize {
        self.program.variables()
    }

    fn at(&self, instance: usize, device: usize) -> Option<Variable> {
        self.placed.get(instance)?.get(device).copied()
    }

    fn save_by_device(&mut self, ends: [usize; 2], saving: f64) {
        let devices = self.placed.first().map_or(0, Vec::len);
        for device in (0..devices).filter(|_| saving > 0.0) {
            self.save(ends, saving, vec![device]);
        }
    }

    fn save_by_host(&mut self, problem: &Problem<'_>, ends: [usize; 2], saving: f64) {
        for host in (0..problem.cluster.hosts).filter(|_| saving > 0.0) {
            let devices = problem.cluster.devices.iter().enumerate();
            let of_host = devices.filter(|(_, device)| device.host == host);
            let of_host = of_host.map(|(device, _)| device).collect();
            self.save(ends, saving, of_host);
        }
    }

    fn save(&mut self, ends: [usize; 2], saving: f64, devices: Vec<usize>) {
        let variable = self.program.bounded(-saving, 1.0);
        for end in ends {
            let on = devices
                .iter()
                .filter_map(|device| Some((self.at(end, *device)?, -1.0)));
            let terms: Vec<(Variable, f64)> = on.chain([(variable, 1.0)]).collect();
            self.program.constraint(terms, Relation::AtMost, 0.0);
        }
        self.savings.push(Saving {
            ends,
            devices,
            variable,
        });
    }

    /// The values of all variables at a placement.
    fn start(&self, placed: &[usize]) -> Vec<f64> {
        let mut values = vec![0.0; self.program.variables()];
        let mut set = |variable: Variable| {
            if let Some(value) = values.get_mut(variable.place()) {
                *value = 1.0;
            }
        };
        for (instance, device) in placed.iter().enumerate() {
            if let Some(variable) = self.at(instance, *device) {
                set(variable);
            }
        }
        for saving in &self.savings {
            let at = |end: usize| {
                placed
                    .get(end)
                    .is_some_and(|device| saving.devices.contains(device))
            };
            if saving.ends.into_iter().all(at) {
                set(saving.variable);
            }
        }
        values
    }

    /// Solves it, beginning from a placement where there is one.
    ///
    /// # Errors
    /// An [`LpError`]; [`LpError::Infeasible`] proves that there is no placement.
    pub(super) fn solve(
        &self,
        start: Option<&[usize]>,
        solver: Solver,
        limits: &Limits,
    ) -> Result<ProgramSolution, LpError> {
        let limits = Limits {
            start: start.map_or_else(Vec::new, |placed| self.start(placed)),
            ..limits.clone()
        };
        let solution = self.program.minimise_by(solver, &limits)?;
        let device = |row: &Vec<Variable>| {
            let mut devices = row.iter();
            devices
                .position(|variable| solution.value(*variable) > 0.5)
                .unwrap_or(0)
        };
        Ok(ProgramSolution {
            placed: self.placed.iter().map(device).collect(),
            proven: solution.proven,
        })
    }
}
