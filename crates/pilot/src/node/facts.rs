//! The facts that a batch system or launcher passes to a process in its environment. Pure.
//!
//! Sources: sbatch(1) and srun(1) "OUTPUT ENVIRONMENT VARIABLES" (Slurm 22.05); PMI-1/2 and MPICH (PMI_RANK); Open MPI
//! FAQ "environment variables" (OMPI_COMM_WORLD_RANK); PMIx (PMIX_RANK); HPE PALS mpiexec(1) (PALS_RANKID); Cray ALPS
//! aprun(1) (ALPS_APP_PE).

use std::collections::BTreeMap;

use crate::error::PilotError;
use crate::node::gpus::Gpu;

pub type Environ = BTreeMap<String, String>;

/// Kind under which whole GPUs are requested and granted.
pub const GPU: &str = "gpu";
/// Kind under which a share of one GPU is requested, in hundredths.
pub const GPU_PERCENT: &str = "gpu_percent";

/// The first that is set counts: Tidemill's, then that of the launcher of this process, then the batch system's.
const RANKS: [&str; 7] = [
    "TIDEMILL_RANK",
    "PALS_RANKID",
    "ALPS_APP_PE",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
];

/// What the environment says about this node's share of the allocation; None = unknown.
#[derive(Debug, Default, PartialEq)]
pub struct Facts {
    pub rank: u64,
    pub node: Option<String>,
    pub ends_at_s: Option<u64>,
    pub cores: Option<u64>,
    pub memory_mb: Option<u64>,
    pub gpus: Vec<Gpu>,
    /// Facts that could not be used.
    pub notes: Vec<String>,
}

/// Read the facts; `with_gpus` adds the GPUs. An error names the variable that has an impossible value.
pub fn read(environ: &Environ) -> Result<Facts, PilotError> {
    let rank = RANKS
        .iter()
        .find_map(|&name| number(environ, name).transpose())
        .transpose()?
        .unwrap_or(0);
    let cores = number(environ, "SLURM_CPUS_ON_NODE")?;
    let memory_mb = match number(environ, "SLURM_MEM_PER_NODE")? {
        Some(0) | None => match (number(environ, "SLURM_MEM_PER_CPU")?, cores) {
            (Some(each), Some(count)) if each > 0 => Some(each * count),
            _ => None,
        },
        some => some,
    };
    Ok(Facts {
        rank,
        node: ["SLURMD_NODENAME", "TIDEMILL_NODE_NAME"]
            .iter()
            .find_map(|&name| text(environ, name)),
        ends_at_s: number(environ, "SLURM_JOB_END_TIME")?,
        cores,
        memory_mb,
        ..Facts::default()
    })
}

fn text(environ: &Environ, name: &str) -> Option<String> {
    environ.get(name).filter(|value| !value.is_empty()).cloned()
}

pub(super) fn number(environ: &Environ, name: &'static str) -> Result<Option<u64>, PilotError> {
    let Some(value) = text(environ, name) else {
        return Ok(None);
    };
    match value.trim().parse() {
        Ok(parsed) => Ok(Some(parsed)),
        Err(_) => Err(PilotError::Variable {
            name,
            value,
            expected: "a whole number",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environ(pairs: &[(&str, &str)]) -> Environ {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn nothing_set_is_rank_0_of_a_plain_machine() {
        assert_eq!(read(&Environ::new()).unwrap(), Facts::default());
    }

    #[test]
    fn slurm_tells_rank_node_end_cores_and_memory() {
        let facts = read(&environ(&[
            ("SLURM_PROCID", "7"),
            ("SLURM_NODEID", "3"),
            ("SLURMD_NODENAME", "nid00007"),
            ("SLURM_JOB_END_TIME", "1795215901"),
            ("SLURM_CPUS_ON_NODE", "64"),
            ("SLURM_MEM_PER_CPU", "2000"),
        ]))
        .unwrap();
        assert_eq!(
            (facts.rank, facts.cores, facts.memory_mb),
            (7, Some(64), Some(128_000))
        );
        assert_eq!(facts.node.as_deref(), Some("nid00007"));
        assert_eq!(facts.ends_at_s, Some(1_795_215_901));
    }

    #[test]
    fn the_launcher_that_started_this_process_counts_more_than_the_batch_system() {
        for name in [
            "PMI_RANK",
            "PMIX_RANK",
            "OMPI_COMM_WORLD_RANK",
            "PALS_RANKID",
            "ALPS_APP_PE",
            "TIDEMILL_RANK",
        ] {
            let facts = read(&environ(&[("SLURM_PROCID", "0"), (name, "5")])).unwrap();
            assert_eq!(facts.rank, 5, "{name}");
        }
    }

    #[test]
    fn all_memory_of_a_slurm_node_is_no_limit() {
        assert_eq!(
            read(&environ(&[("SLURM_MEM_PER_NODE", "0")])).unwrap().memory_mb,
            None
        );
        assert_eq!(
            read(&environ(&[("SLURM_MEM_PER_NODE", "4096")]))
                .unwrap()
                .memory_mb,
            Some(4096)
        );
    }

    #[test]
    fn a_rank_that_is_no_number_is_named() {
        let error = read(&environ(&[("PMI_RANK", "one")])).unwrap_err();
        assert!(error.to_string().contains("PMI_RANK is `one`"), "{error}");
    }
}
