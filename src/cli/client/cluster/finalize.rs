//! `kvorum cluster finalize`: asks a node to raise the store format of all members. Also formats
//! the store formats for `kvorum cluster status`.

use serde_json::Value;

use super::super::admin::AdminClient;
use super::super::{CommandFailure, print_done};
use crate::cli::client::ConnectionArgs;
use crate::finalize::status::{Finalized, StoreFormats};
use crate::operations::status::{Cluster, Row};

/// Runs the command.
pub(super) fn finalize(ask: &ConnectionArgs) -> Result<(), CommandFailure> {
    let done: Finalized = AdminClient::new(ask)?.request_change("/admin/finalize", 200)?;
    let what = match done.raised.is_empty() {
        true => "nothing was changed",
        false => "the stores were raised",
    };
    let text = match ask.json {
        true => serde_json::to_string(&done).expect("strings and numbers serialize") + "\n",
        false => done_text(&done),
    };
    print_done(&text, what)
}

fn done_text(done: &Finalized) -> String {
    let Finalized { format, raised, unchanged } = done;
    if raised.is_empty() {
        return format!(
            "nothing to do: all stores have format {format}, the latest that the asked node \
             writes: {}\n",
            unchanged.join(", ")
        );
    }
    let before = match unchanged.is_empty() {
        true => String::new(),
        false => format!("; {} had it already", unchanged.join(", ")),
    };
    format!(
        "done: store format {format} on {}{before}. Releases that do not know it can't open these \
         directories any more\n",
        raised.join(", ")
    )
}

/// Adds the store formats of the node `name` to its JSON object, if the node has reported them.
pub(super) fn add_formats(node: &mut Value, cluster: &Cluster, name: &str) {
    let row = cluster.nodes.iter().find(|row| row.name == name);
    let Some(status) = row.and_then(|row| row.status.as_ref()) else { return };
    let formats = serde_json::to_value(status.formats).expect("numbers serialize");
    let formats = formats.as_object().cloned().unwrap_or_default();
    node.as_object_mut().into_iter().for_each(|node| node.extend(formats.clone()));
}

/// Describes the store formats that the nodes have reported, and the next step of an upgrade;
/// `None` if no node has reported its formats. `flags` are the connection's flags for printed
/// commands.
pub(super) fn formats_text(cluster: &Cluster, flags: &str) -> Option<String> {
    let told = |row: &Row| Some((row.name.clone(), row.status.as_ref()?.formats));
    let told: Vec<(String, StoreFormats)> = cluster.nodes.iter().filter_map(told).collect();
    let has = |formats: &StoreFormats| formats.store_format;
    let first = has(&told.first()?.1);
    let text = match told.iter().all(|(_, formats)| has(formats) == first) {
        true => format!("store format {first}"),
        false => {
            let each = told.iter().map(|(name, formats)| format!("{} on {name}", has(formats)));
            format!("store format {}", each.collect::<Vec<_>>().join(", "))
        }
    };
    let latest = told.iter().map(|(_, formats)| formats.newest_store_format).max()?;
    if told.iter().all(|(_, formats)| has(formats) == latest) {
        return Some(text);
    }
    let early = told.iter().filter(|(_, formats)| formats.newest_store_format < latest);
    let early: Vec<&str> = early.map(|(name, _)| name.as_str()).collect();
    Some(match early.is_empty() {
        true => format!(
            "{text}; kvorum cluster finalize{flags} raises it to {latest}, and then there is no \
             way back to a release that does not know {latest}"
        ),
        false => format!(
            "{text}; format {latest} comes once all nodes run a release that writes it: upgrade \
             {}, then kvorum cluster finalize{flags}",
            early.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::operations::status::tests::status;

    fn row(name: &str, has: u32, newest: u32) -> Row {
        let status = status(json!({
            "name": name, "store_format": has, "newest_store_format": newest,
        }));
        Row { name: name.to_owned(), up: true, status: Some(status), ..Row::default() }
    }

    fn text(nodes: Vec<Row>) -> Option<String> {
        let cluster = Cluster { asked: "a".to_owned(), council: Vec::new(), nodes };
        formats_text(&cluster, " --url X")
    }

    #[test]
    fn the_status_tells_the_formats_and_the_next_step() {
        assert_eq!(text(vec![row("a", 1, 1), row("b", 1, 1)]).unwrap(), "store format 1");
        let down = Row { name: "c".to_owned(), ..Row::default() };
        assert_eq!(text(vec![down.clone()]), None);
        assert_eq!(text(vec![row("a", 2, 2), down]).unwrap(), "store format 2");
        assert_eq!(
            text(vec![row("a", 1, 2), row("b", 1, 1)]).unwrap(),
            "store format 1; format 2 comes once all nodes run a release that writes it: upgrade \
             b, then kvorum cluster finalize --url X"
        );
        assert_eq!(
            text(vec![row("a", 2, 2), row("b", 1, 2)]).unwrap(),
            "store format 2 on a, 1 on b; kvorum cluster finalize --url X raises it to 2, and then \
             there is no way back to a release that does not know 2"
        );
    }

    #[test]
    fn the_command_says_what_it_raised() {
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let done = |raised: &[&str], unchanged: &[&str]| {
            let (raised, unchanged) = (strings(raised), strings(unchanged));
            done_text(&Finalized { format: 2, raised, unchanged })
        };
        assert!(done(&["a", "b"], &["c"]).starts_with(
            "done: store format 2 on a, b; c had it already. Releases that do not know it can't"
        ));
        assert_eq!(
            done(&[], &["a", "b"]),
            "nothing to do: all stores have format 2, the latest that the asked node writes: a, b\n"
        );
    }
}
