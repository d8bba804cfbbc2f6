//! Tests of the import of outputs from five published reports.

use std::fs;
use std::path::{Path, PathBuf};

use load::import::{ImportArgs, ImportedOutput, import, read};
use load::record::Run;
use load::report::{ReportArgs, report};

fn seed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds").join(format!("{name}.txt"))
}

fn runs(name: &str) -> Vec<ImportedOutput> {
    read(&fs::read_to_string(seed(name)).unwrap(), name)
}

fn find_warning<'a>(run: &'a Run, code: &str) -> Option<&'a str> {
    run.warnings.iter().find(|warning| warning.code == code).map(|warning| &*warning.text)
}

fn names_missing(run: &Run, words: &str) -> bool {
    run.missing.iter().any(|missing| missing.contains(words))
}

#[test]
fn all_fourteen_outputs_are_found() {
    let names = |name| runs(name).into_iter().map(|run| run.name).collect::<Vec<_>>();
    assert_eq!(
        names("000-sharding"),
        ["000-sharding-1-put-40000-c64-8080", "000-sharding-2-get-2500-c64-8080"]
    );
    assert_eq!(
        names("001-one-connection"),
        ["001-one-connection-1-put-10000-c1-8080", "001-one-connection-2-get-10000-c1-8080"]
    );
    let replication = ["put", "get"].into_iter().enumerate().flat_map(|(i, method)| {
        (0..3).map(move |node| {
            format!("002-replication-{}-{method}-10000-c128-808{node}", 3 * i + node + 1)
        })
    });
    assert_eq!(names("002-replication"), replication.collect::<Vec<_>>());
    assert_eq!(
        names("003-worker-pool"),
        [
            "003-worker-pool-1-put-5000-c1-19234",
            "003-worker-pool-2-get-1000-c1-19234",
            "003-worker-pool-3-put-35000-c64-19234",
            "003-worker-pool-4-get-25000-c64-19234",
        ]
    );
    assert_eq!(runs("004-breaking-point"), [], "it quotes commands, but no output");
}

#[test]
fn every_output_gives_its_figures() {
    // Requests, answers per second, samples, mean in ms, p99 in ms. 0 = not in the output.
    let figures = |run: &Run| {
        let latency = run.latency("intended").unwrap();
        let p99 = latency.at(0.99).unwrap_or_default();
        (run.counts.answered, run.throughput.unwrap_or_default(), latency.count, latency.mean, p99)
    };
    let all = ["000-sharding", "001-one-connection", "002-replication", "003-worker-pool"];
    let all: Vec<_> = all.into_iter().flat_map(runs).map(|found| figures(&found.run)).collect();
    assert_eq!(
        all,
        [
            (7_179_159, 39_884.60, 6_796_735, 2.706, 28.43),
            (449_331, 2496.27, 424_798, 4.648, 57.06),
            (1_192_550, 9936.56, 1_092_511, 463.367, 2400.0),
            (1_199_957, 9999.66, 1_099_920, 1.119, 7.68),
            (597_754, 9962.96, 496_234, 10.213, 44.74),
            (594_247, 9904.15, 496_822, 10.922, 43.71),
            (594_232, 9904.0, 496_801, 11.585, 44.7),
            (594_229, 9903.93, 496_908, 8.99, 31.28),
            (594_221, 9903.72, 496_848, 7.06, 32.9),
            (594_050, 9900.98, 496_760, 5.242, 26.46),
            (499_948, 4999.92, 0, 1.96, 0.0),
            (99_993, 1000.0, 0, 10_450.0, 0.0),
            (3_498_183, 34_996.0, 0, 3.67, 0.0),
            (2_498_872, 25_001.62, 0, 8.43, 0.0),
        ]
    );
}

#[test]
fn missing_or_contradictory_command_facts_are_listed() {
    let [put, get] = &runs("000-sharding")[..] else { panic!("two runs") };
    assert_eq!(put.run.plan.rate, Some(40_000.0));
    assert!(names_missing(&put.run, "the command says -40000: taken as -R40000"));
    assert_eq!(get.run.plan.duration_s, 180.0);
    assert!(names_missing(&get.run, "the command says -d 60m, but the run took 180 s"));
    let other = "the command shown is not the one that was run: -d 60m there, 3m here";
    assert_eq!(find_warning(&get.run, "other-command"), Some(other));
    assert_eq!(find_warning(&put.run, "other-command"), None);
    let [single, .., pooled] = &runs("003-worker-pool")[..] else { panic!("four runs") };
    assert_eq!(single.run.argv[..4], ["wrk", "-d", "100", "-t"]);
    assert_eq!(single.run.plan.duration_s, 100.0);
    assert_eq!(find_warning(&single.run, "other-command"), None, "wrk heads 100 s as 2m");
    assert!(names_missing(&single.run, "no percentiles at all"));
    assert_eq!(pooled.run.argv, [""; 0]);
    assert!(names_missing(&pooled.run, "no command line"));
    assert!(names_missing(
        &pooled.run,
        "-R is missing: 25000 a second is the round number nearest"
    ));
    assert!(names_missing(&pooled.run, "no script: GET is what the text before it speaks of"));
    let node = &runs("002-replication")[0].run;
    assert!(names_missing(node, "no spectrum: only the 8 quantiles"));
    assert_eq!(node.plan.targets, ["http://localhost:8080"]);
}

#[test]
fn imported_runs_get_warnings_about_their_flaws() {
    let [put, get] = &runs("001-one-connection")[..] else { panic!("two runs") };
    let all = "100 % of the answers (1199957 of 1199957) were neither 2xx nor 3xx: no figure of \
               this run is about requests that worked";
    assert_eq!(find_warning(&get.run, "non-2xx"), Some(all));
    assert_eq!(find_warning(&put.run, "non-2xx"), None);
    let dropped = "the latencies are of 1092511 of the 1192550 requests: wrk2 drops its first 10 s";
    assert!(find_warning(&put.run, "calibration").unwrap().starts_with(dropped));
    assert!(
        find_warning(&put.run, "connection-limit").unwrap().starts_with("one connection carries")
    );
    assert!(
        find_warning(&put.run, "backlog").unwrap().contains("in stalls: the median is 1.27 ms")
    );
    assert!(find_warning(&put.run, "socket-errors").unwrap().starts_with("3 timeouts"));
    let [single_put, single_get, _, pooled] = &runs("003-worker-pool")[..] else { panic!("four") };
    let paper = find_warning(&single_get.run, "backlog").unwrap();
    assert!(paper.starts_with("1000.00 a second were answered, but 10.45 s late on average"));
    assert!(paper.contains("held only on paper (already 3.7 s late while wrk2 calibrated)"));
    assert!(find_warning(&single_get.run, "non-2xx").unwrap().starts_with("49.7665 %"));
    assert!(find_warning(&pooled.run, "non-2xx").unwrap().starts_with("49.7703 %"));
    assert!(find_warning(&single_put.run, "connection-limit").is_some());
    assert_eq!(find_warning(&single_put.run, "backlog"), None);
    let few = find_warning(&runs("000-sharding")[1].run, "few-samples").unwrap().to_owned();
    assert!(few.starts_with("99.999 % and above mean little: of 424798 samples 4.2 lie beyond"));
}

#[test]
fn run_directories_contain_the_run_and_the_unchanged_output() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("runs");
    let args = ImportArgs { files: vec![seed("001-one-connection")], out: out.clone() };
    let told = import(&args).unwrap();
    assert!(told.contains("001-one-connection.txt:22 -> "), "{told}");
    assert!(told.contains("  WARNING non-2xx: 100 %"), "{told}");
    let directory = out.join("001-one-connection-2-get-10000-c1-8080");
    let run: Run = serde_json::from_slice(&fs::read(directory.join("run.json")).unwrap()).unwrap();
    assert_eq!((run.source.as_str(), run.tool.as_str()), ("import", "wrk2"));
    let output = fs::read_to_string(directory.join("output.txt")).unwrap();
    assert!(output.starts_with("Running 2m test @") && output.contains("673.81KB"));
    assert!(
        import(&args).unwrap_err().to_string().contains("is there already and was left as it is")
    );
    let none = ImportArgs { files: vec![seed("004-breaking-point")], out };
    assert!(import(&none).unwrap_err().to_string().contains("no output of wrk2 or wrk is in it"));
    let both = ImportArgs {
        files: vec![seed("004-breaking-point"), seed("003-worker-pool")],
        out: scratch.path().join("both"),
    };
    let told = import(&both).unwrap();
    assert!(told.starts_with(&none.files[0].display().to_string()), "{told}");
    assert_eq!(told.matches(" -> ").count(), 4, "one without does not stop the others: {told}");
    let gone = ImportArgs { files: vec!["none.txt".into()], out: ".".into() };
    assert!(import(&gone).unwrap_err().to_string().starts_with("none.txt: cannot be read: "));
}

#[test]
fn an_output_cut_anywhere_is_still_read() {
    let text = fs::read_to_string(seed("001-one-connection")).unwrap();
    let begin = text.find("Running 2m").unwrap();
    for cut in (begin..text.len()).filter(|cut| text.is_char_boundary(*cut)).step_by(7) {
        for found in read(&text[..cut], "cut") {
            assert!(
                found.run.throughput.is_none_or(f64::is_finite)
                    && found.run.plan.duration_s.is_finite()
            );
        }
    }
    // An output that ends after the latency table.
    let table = &read(&text[..begin + text[begin..].find("#[Buckets").unwrap()], "table")[0].run;
    assert!(names_missing(table, "Requests/sec"), "{:?}", table.missing);
    assert_eq!((table.throughput, find_warning(table, "rate-not-reached")), (None, None));
    let json = serde_json::to_string(table).unwrap();
    assert!(!json.contains("\"throughput\""), "{json}");
    let out = tempfile::tempdir().unwrap();
    fs::write(out.path().join("run.json"), &json).unwrap();
    let page = out.path().join("report.html");
    let directories = vec![out.path().to_owned()];
    report(&ReportArgs { directories, out: page.clone(), title: None }, "kvorum").unwrap();
    let page = fs::read_to_string(page).unwrap();
    for unknown in ["answered", "a second"] {
        assert!(page.contains(&format!("<dt>{unknown}</dt><dd>–</dd>")), "{unknown}");
    }
    let half = &read(&text[..begin + 600], "half")[0].run;
    assert!(
        names_missing(half, "the end of the output")
            && names_missing(half, "the number of requests")
    );
}

/// Pasted outputs often begin where the terminal's screen began.
#[test]
fn an_output_without_its_first_line_keeps_its_other_figures() {
    let text = fs::read_to_string(seed("001-one-connection")).unwrap();
    let whole = runs("001-one-connection");
    let headless: String =
        text.split_inclusive('\n').filter(|line| !line.trim().starts_with("Running ")).collect();
    let found = read(&headless, "001-one-connection");
    assert_eq!(found.len(), whole.len());
    for (found, whole) in found.iter().zip(&whole) {
        assert_eq!(
            (&found.run.counts, &found.run.latency),
            (&whole.run.counts, &whole.run.latency)
        );
        assert_eq!(found.run.throughput, whole.run.throughput);
        assert_eq!(found.run.plan.connections, whole.run.plan.connections);
        assert!(
            found.run.plan.targets.is_empty() && names_missing(&found.run, "the line \"Running")
        );
    }
    // The output is also found without its second line, as from a script that prints nothing else.
    let shorter: String = headless
        .split_inclusive('\n')
        .filter(|line| !line.contains(" threads and ") && !line.contains("Thread calibration"))
        .collect();
    let found = read(&shorter, "001-one-connection");
    assert_eq!(found.len(), whole.len());
    assert_eq!(found[0].run.counts.answered, whole[0].run.counts.answered);
}

/// A page has outputs with a first line and outputs without one. The import must find all of them.
#[test]
fn outputs_with_and_without_a_first_line_are_all_found() {
    let output = |requests: u32| {
        format!(
            "  2 threads and 10 connections\n  Thread Stats   Avg      Stdev     Max   +/- Stdev\n\
             Latency     1.00ms    1.00ms   9.00ms   90.00%\n  {requests} requests in 10.00s, 1KB \
             read\nRequests/sec: 100.00\nTransfer/sec:      1.00KB\n"
        )
    };
    let headed = |requests| format!("Running 10s test @ http://h:1\n{}", output(requests));
    let page = format!(
        "before\n{}text\n{}{}\nIt had Requests/sec: 5, and\nRequests/sec: 77.00\nmore text\n{}",
        headed(1),
        output(2),
        headed(3),
        // The end of an output is cut off, and the next output begins.
        output(4).split("Requests/sec").next().unwrap().to_owned() + &output(5),
    );
    let counts: Vec<u64> =
        read(&page, "page").iter().map(|found| found.run.counts.answered).collect();
    assert_eq!(counts, [1, 2, 3, 4, 5]);
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("page.md");
    fs::write(&file, &page).unwrap();
    let told = import(&ImportArgs { files: vec![file], out: scratch.path().join("out") }).unwrap();
    assert_eq!(told.matches(" -> ").count(), 5, "{told}");
    assert!(told.contains(": not imported, for it stands alone: Requests/sec: 77.00"), "{told}");
}

#[test]
fn a_truncated_output_takes_its_duration_from_its_first_line() {
    let head = "Running 30s test @ http://h:1\n  2 threads and 10 connections\n";
    let cut = &read(head, "cut")[0].run;
    assert_eq!((cut.plan.duration_s, cut.elapsed_s), (30.0, 30.0));
    assert!(names_missing(cut, "how long the run took: 30s is what it is headed with, rounded"));
    let ended = &read(&format!("{head}  500 requests in 30.05s, 1.00MB read\n"), "cut")[0].run;
    assert_eq!((ended.plan.duration_s, ended.elapsed_s), (30.0, 30.05));
    let said = &read(&format!("wrk -d 1m http://h:1\n{head}"), "cut")[0].run;
    assert_eq!(said.plan.duration_s, 60.0, "the command says it");
}
