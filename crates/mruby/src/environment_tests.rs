//! Tests of the Ruby environment, as scripts use it.

use crate::tests::{evaluate, evaluate_as, vm};

#[test]
fn the_first_rule_of_an_acl_that_holds_decides() {
    let vm = vm();
    let script = r#"
        prefix = "10."
        $app = acl {
          allow { addr.start_with?(prefix) }
          redirect("/soon", 307) { path.start_with?("/old") }
          respond(429, {"retry-after" => "60"}, ["slow\n"]) { user_agent =~ /scraper/i }
          use(proc { |env| [200, {}, [env["PATH_INFO"]]] }) { header("x-Pass") == "yes" && method == "GET" }
          deny { addr(false) == "9.9.9.9" }
        }
        H2O::ConfigurationContext.instance.call_post_handler_generation_hooks($app)
        def ask(env)
          $app.call(env)
        end
        0"#;
    assert_eq!(evaluate(&vm, script), "0");
    for (env, want) in [
        (r#""REMOTE_ADDR" => "10.1.2.3""#, "[399, {}, []]"),
        (
            r#""REMOTE_ADDR" => "1.1.1.1", "HTTP_X_FORWARDED_FOR" => "10.0.0.1, 2.2.2.2""#,
            "[399, {}, []]",
        ),
        (
            r#""PATH_INFO" => "/old/x""#,
            r#"[307, {"Location"=>"/soon"}, []]"#,
        ),
        (
            r#""HTTP_USER_AGENT" => "Scraper/1""#,
            r#"[429, {"retry-after"=>"60"}, ["slow\n"]]"#,
        ),
        (
            r#""HTTP_X_PASS" => "yes", "REQUEST_METHOD" => "GET", "PATH_INFO" => "/p""#,
            r#"[200, {}, ["/p"]]"#,
        ),
        (
            r#""REMOTE_ADDR" => "9.9.9.9""#,
            r#"[403, {}, ["Forbidden"]]"#,
        ),
        (r#""REMOTE_ADDR" => "8.8.8.8""#, "[399, {}, []]"),
        (
            r#""REMOTE_ADDR" => "10.1.2.3", "HTTP_EARLY_DATA" => "1""#,
            "[425, {}, []]",
        ),
    ] {
        assert_eq!(evaluate(&vm, &format!("ask({{{env}}})")), want, "{env}");
    }
}

#[test]
fn an_acl_that_is_not_the_app_is_refused() {
    let vm = vm();
    let context = "context = H2O::ConfigurationContext.instance;";
    for (script, want) in [
        (
            "acl { deny }; acl { deny }",
            "raised acl can be called only once for each handler configuration (RuntimeError)",
        ),
        (
            "acl { deny }; context.call_post_handler_generation_hooks(proc { })",
            "raised acl configuration is ignored (RuntimeError)",
        ),
        (
            "context.call_post_handler_generation_hooks(5)",
            "raised app is not callable (RuntimeError)",
        ),
        (
            "context.call_post_handler_generation_hooks(acl { deny }); 1",
            "1",
        ),
    ] {
        assert_eq!(
            evaluate(&vm, &format!("{context} {script}")),
            want,
            "{script}"
        );
    }
}

#[test]
fn each_script_has_its_own_acl_also_when_one_waits_before_it_or_behind_it() {
    let vm = vm();
    let check = "H2O::ConfigurationContext.instance.call_post_handler_generation_hooks";
    let first = format!("pause; {check}(acl {{ allow }}); $first = 1");
    let second = format!("app = acl {{ deny }}; pause; {check}(app); $second = 2");
    assert_eq!(evaluate_as(&vm, 1, &first), "");
    assert_eq!(evaluate_as(&vm, 2, &second), "");
    assert_eq!(crate::tests::resume_all(&vm), 2);
    assert_eq!(evaluate(&vm, "[$first, $second]"), "[1, 2]");
}

#[test]
fn no_two_vms_have_the_same_random_numbers_unless_the_script_seeds_them() {
    let draws = |script: &str| [(); 2].map(|()| evaluate(&vm(), script));
    for script in [
        "[rand(1 << 30), rand(1 << 30)]",
        "(0..40).to_a.shuffle",
        "srand; [rand(1 << 30), rand(1 << 30)]",
        "Random.srand; Random.rand(1 << 30)",
        "Random.new.rand(1 << 30)",
        "random = Random.new(5); random.srand; random.rand(1 << 30)",
    ] {
        let [one, other] = draws(script);
        assert_ne!(one, other, "{script}");
    }
    for script in [
        "srand(5); [rand(1 << 30), srand(7)]",
        "Random.srand(5); (0..40).to_a.shuffle",
        "Random.new(5).rand(1 << 30)",
    ] {
        let [one, other] = draws(script);
        assert_eq!(one, other, "{script}");
    }
}
