//! The store formats of the members, and the stores to raise: the JSON of `/admin/finalize`.

use serde::{Deserialize, Serialize};

use crate::operations::status::{Cluster, Membership, Row, Status};

/// The store format of one node, and the range of formats that its program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreFormats {
    /// The store's format.
    pub(crate) store_format: u32,
    /// The earliest store format that the node's program opens and writes.
    pub(crate) oldest_store_format: u32,
    /// The latest store format that the node's program opens and writes.
    pub(crate) newest_store_format: u32,
}

impl StoreFormats {
    /// Returns the formats of an open store.
    pub(crate) fn of(db: &lsm::Db) -> Self {
        let (engine, formats) = (db.engine(), db.engine().formats());
        Self {
            store_format: engine.format(),
            oldest_store_format: formats.first,
            newest_store_format: formats.last,
        }
    }

    /// Returns true if the program writes a later format than the store has.
    pub(crate) fn can_be_raised(self) -> bool {
        self.store_format < self.newest_store_format
    }
}

/// The outcome of a request to finalize an upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finalized {
    /// The store format that every member has now.
    pub(crate) format: u32,
    /// The members whose stores were raised, by name.
    pub(crate) raised: Vec<String>,
    /// The members whose stores already had the format, by name.
    pub(crate) unchanged: Vec<String>,
}

/// The answer of a node that was requested to raise the format of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Raised {
    /// The store's current format, at least the requested format.
    pub(crate) store_format: u32,
}

/// The reason why a node did not raise its own store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RaiseError {
    /// The program does not write the format. Nothing was changed.
    #[error(transparent)]
    Refused(lsm::Error),
    /// The disk failed. The store has the old or the new format, and the next start shows which.
    #[error(transparent)]
    Store(lsm::Error),
}

impl From<lsm::Error> for RaiseError {
    fn from(error: lsm::Error) -> Self {
        match error {
            lsm::Error::UnknownFormat { .. } => Self::Refused(error),
            _ => Self::Store(error),
        }
    }
}

/// The reason why a member's store can't be raised. Nothing was changed yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotReady {
    #[error(
        "{name} does not tell its store format: {why}. Start it, or make a plan without it if it \
         is lost for good (kvorum cluster plan --remove-dead {name}); then ask again"
    )]
    Silent { name: String, why: String },
    #[error(
        "{name} is {membership}, and serves nothing: end that first (kvorum status says how), then \
         ask again"
    )]
    ServesNothing { name: String, membership: Membership },
    #[error("{name} accepts no writes: {why}. Restart it, then ask again")]
    Failed { name: String, why: String },
    #[error(
        "{name} runs version {version}, which writes the store formats {oldest} to {newest}, and \
         not {format}: upgrade {name}, then ask again"
    )]
    TooEarly { name: String, version: String, oldest: u32, newest: u32, format: u32 },
}

impl NotReady {
    /// Returns the reason why this member's store can't be raised to `format`; `None` if it can.
    fn of(row: &Row, format: u32) -> Option<Self> {
        let name = row.name.clone();
        let Some(status) = &row.status else {
            let why = row.error.clone().unwrap_or_else(|| "it is down".to_owned());
            return Some(Self::Silent { name, why });
        };
        let Status { version, membership, failed, formats, .. } = status;
        if matches!(membership, Membership::Fenced | Membership::Removed) {
            return Some(Self::ServesNothing { name, membership: membership.clone() });
        }
        if let Some(why) = failed.clone() {
            return Some(Self::Failed { name, why });
        }
        let (oldest, newest) = (formats.oldest_store_format, formats.newest_store_format);
        let version = version.clone();
        (newest < format).then_some(Self::TooEarly { name, version, oldest, newest, format })
    }
}

/// Returns the names of the members whose stores have an earlier format than `format`, and of the
/// other members. Fails if a member's store can't be raised.
pub(crate) fn to_raise(
    cluster: &Cluster,
    format: u32,
) -> Result<(Vec<String>, Vec<String>), NotReady> {
    if let Some(why) = cluster.nodes.iter().find_map(|row| NotReady::of(row, format)) {
        return Err(why);
    }
    let has = |row: &&Row| {
        row.status.as_ref().is_some_and(|status| status.formats.store_format >= format)
    };
    let (unchanged, earlier): (Vec<&Row>, Vec<&Row>) = cluster.nodes.iter().partition(has);
    let names = |rows: Vec<&Row>| rows.into_iter().map(|row| row.name.clone()).collect();
    Ok((names(earlier), names(unchanged)))
}

/// Describes a raise that some members did not complete. `failed` has their names and the reasons.
pub(crate) fn incomplete(format: u32, have: &[String], failed: &[(String, String)]) -> String {
    let raised = match have {
        [] => "no node is known to have".to_owned(),
        [one] => format!("{one} has"),
        several => format!("{} have", several.join(", ")),
    };
    let failed: Vec<String> = failed.iter().map(|(name, why)| format!("{name} ({why})")).collect();
    format!(
        "{raised} store format {format}, and these are not known to have it: {}. The cluster \
         serves: a store format belongs to a node's own disk, and nodes of both work together. A \
         release that does not know format {format} opens none of the raised directories any \
         more. The same command completes the rest once all nodes are up: kvorum cluster finalize",
        failed.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operations::status::tests::status;

    fn row(name: &str, has: u32, newest: u32) -> Row {
        let status = status(json!({
            "name": name, "version": format!("0.{newest}.0"), "store_format": has,
            "oldest_store_format": 1, "newest_store_format": newest,
        }));
        Row { name: name.to_owned(), up: true, status: Some(status), ..Row::default() }
    }

    fn cluster(nodes: Vec<Row>) -> Cluster {
        Cluster { asked: "a".to_owned(), council: Vec::new(), nodes }
    }

    #[test]
    fn the_members_of_earlier_formats_are_raised() {
        let of = |nodes| to_raise(&cluster(nodes), 2).unwrap();
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let found: (Vec<String>, Vec<String>) =
            of(vec![row("a", 1, 2), row("b", 2, 2), row("c", 3, 3)]);
        assert_eq!(found, (strings(&["a"]), strings(&["b", "c"])));
        assert_eq!(of(vec![row("a", 2, 2)]), (strings(&[]), strings(&["a"])));
    }

    #[test]
    fn a_member_that_is_not_ready_is_named_with_what_to_do() {
        let why = |member: Row| {
            to_raise(&cluster(vec![row("a", 1, 2), member]), 2).unwrap_err().to_string()
        };
        let silent = Row { name: "b".to_owned(), error: Some("no route".into()), ..Row::default() };
        let said = why(silent);
        assert!(said.starts_with("b does not tell its store format: no route. Start it"), "{said}");
        assert_eq!(
            why(row("b", 1, 1)),
            "b runs version 0.1.0, which writes the store formats 1 to 1, and not 2: upgrade b, \
             then ask again"
        );
        let mut failed = row("b", 1, 2);
        failed.status.as_mut().unwrap().failed = Some("cannot sync".to_owned());
        assert_eq!(why(failed), "b accepts no writes: cannot sync. Restart it, then ask again");
        let mut fenced = row("b", 1, 2);
        fenced.status.as_mut().unwrap().membership = Membership::Fenced;
        assert!(why(fenced).starts_with("b is fenced, and serves nothing"));
    }

    #[test]
    fn an_incomplete_raise_names_the_members_with_and_without_the_format() {
        let failed = [("c".to_owned(), "Connection refused".to_owned())];
        let said = incomplete(2, &["a".to_owned(), "b".to_owned()], &failed);
        assert!(said.starts_with("a, b have store format 2, and these are not known to"), "{said}");
        assert!(said.contains("to have it: c (Connection refused). The cluster serves"), "{said}");
        let said = incomplete(2, &[], &failed);
        assert!(said.starts_with("no node is known to have store format 2"), "{said}");
        assert!(incomplete(2, &["a".to_owned()], &failed).starts_with("a has store format 2"));
    }
}
